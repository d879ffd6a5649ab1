"""The names that users of the SDK may rely on, and answers that the client cannot use."""

import inspect
from collections.abc import Iterator

import pytest

import deltahub.client
from deltahub.client import Hub
from deltahub.client.api.endpoints import Api
from deltahub.client.api.transport import Transport
from support.service.hostile_hub import HostileHub, hostile_hub


def test_the_public_names_are_these() -> None:
    assert set(deltahub.client.__all__) == {
        "BadResponse", "Bars", "CannotExport", "ClientError", "CodecError", "CommitResult",
        "Conflict", "CorruptFrame", "DiskFull", "Entry", "Forbidden", "Hub", "HubError",
        "HubUnreachable", "InvalidArgument", "InvalidInput", "InvalidRequest", "InvalidSafetensors",
        "Job", "JobFailed", "LimitExceeded", "Lines", "LocalFileChanged", "MethodError", "NoGpu",
        "NotFound", "Progress", "PullResult", "PushResult", "Ref", "RefMoved", "Repository",
        "RepositoryNotFound", "Revision", "RevisionNotFound", "Silent", "Stage", "StorageFull",
        "Unauthorized", "UnsupportedVersion", "VerificationFailed", "WhoAmI",
    }  # fmt: skip


def test_every_method_is_documented_or_says_it_by_its_name() -> None:
    plain = {"url", "close", "whoami", "job", "cancel_job", "repository"}
    for name, method in inspect.getmembers(Hub, inspect.isfunction):
        if not name.startswith("_") and name not in plain:
            assert method.__doc__, name


@pytest.fixture
def hub() -> Iterator[HostileHub]:
    with hostile_hub() as running:
        yield running


@pytest.fixture
def api(hub: HostileHub) -> Iterator[Api]:
    transport = Transport(hub.url, None)
    yield Api(transport)
    transport.close()
