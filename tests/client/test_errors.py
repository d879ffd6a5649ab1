"""The hub, the client and the documentation have the same error codes."""

from pathlib import Path

import pytest

from deltahub.client import errors
from deltahub.client.cli.output import exit_status
from deltahub.codecs.errors import CodecError
from deltahub.registry.errors import RegistryError
from deltahub.server.errors import STATUS_OF

DOCS = Path(__file__).resolve().parents[2] / "docs"


def codes_of(root: type[RegistryError] | type[CodecError]) -> set[str]:
    return {root.code}.union(*(codes_of(child) for child in root.__subclasses__()))


def test_every_code_of_the_registry_has_a_class_here_and_a_status_there() -> None:
    ours = {code for code in errors.HUB_CODES if code.isidentifier()}
    registry = codes_of(RegistryError)
    assert registry - ours == set()
    assert ours - registry == set()
    assert registry - STATUS_OF.keys() == set()


def test_every_code_that_the_server_sends_becomes_an_error_that_keeps_it() -> None:
    for code, status in STATUS_OF.items():
        error = errors.error_of(code, "why", status)
        assert error.code == code
        assert error.status == status
        assert str(error) == "why"


def test_what_a_codec_refuses_at_the_hub_is_an_invalid_request() -> None:
    for code in codes_of(CodecError):
        error = errors.error_of(code, "why", STATUS_OF[code])
        assert isinstance(error, errors.InvalidRequest | errors.LimitExceeded), code


def test_the_hub_cannot_send_a_code_that_only_this_side_may_raise() -> None:
    error = errors.error_of("verification_failed", "forged", 422)
    assert not isinstance(error, errors.ClientError)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.RepositoryNotFound("x"), 3),
        (errors.Unauthorized("x"), 4),
        (errors.Forbidden("x"), 4),
        (errors.HubUnreachable("x"), 5),
        (errors.VerificationFailed("x"), 6),
        (errors.InvalidArgument("x"), 2),
        (errors.JobFailed("x"), 1),
        (errors.DiskFull("x"), 1),
    ],
)
def test_exit_statuses(error: errors.HubError, status: int) -> None:
    assert exit_status(error) == status


def test_every_code_is_in_the_documentation() -> None:
    text = (DOCS / "sdk.md").read_text()
    missing = {code for code in errors.HUB_CODES | errors.CLIENT_CODES if f"`{code}`" not in text}
    assert missing == set()
