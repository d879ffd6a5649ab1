"""The token goes to the hub that it belongs to, and to no other host."""

import socket

import pytest

from deltahub.client import BadResponse, Hub, InvalidArgument
from support.service.client_process import deltahub
from support.service.hostile_hub import HostileHub, hostile_hub, reply


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 300, 304])
@pytest.mark.parametrize(
    "target", ["{other}/v1/whoami", "file:///etc/passwd", "//{host}/x", "/loop"]
)
def test_no_redirect_is_followed_so_no_other_host_gets_the_token(
    evil: HostileHub, client: Hub, status: int, target: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        where = target.format(other=f"http://{host}", host=host)
        evil.answers["GET /v1/whoami"] = reply(b"", status, Location=where)
        with pytest.raises(BadResponse, match="sends to"):
            client.whoami()
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert len(evil.seen) == 1


@pytest.mark.parametrize(
    "target",
    [
        "//{host}/v1/repositories/ann/n", "http://{host}/v1/repositories/ann/n",
        "/v1/repositories/../../other", "/v1/repositories/%2e%2e/%2E./other",
        "/../v1/repositories/ann/n", "/v1/whoami",
    ],
)  # fmt: skip
def test_a_renamed_repository_is_followed_to_no_other_place(
    evil: HostileHub, client: Hub, target: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        where = target.format(host=host)
        evil.answers["GET /v1/repositories/ann/m/revision"] = reply(b"", 307, Location=where)
        with pytest.raises(BadResponse, match="sends to"):
            client.revision("ann/m")
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert len(evil.seen) == 1


@pytest.mark.parametrize(
    ("url", "is_sent"), [("{configured}", True), ("{configured}/", True), ("{evil}", False)]
)
def test_the_token_of_the_environment_goes_only_to_the_hub_of_the_environment(
    evil: HostileHub, url: str, is_sent: bool
) -> None:
    with hostile_hub() as configured:
        for hub in (evil, configured):
            hub.answers["GET /v1/whoami"] = reply({"name": "ann"})
        environment = {"DELTAHUB_URL": configured.url, "DELTAHUB_TOKEN": "dh_secret"}
        given = url.format(configured=configured.url, evil=evil.url)
        run = deltahub("whoami", "--url", given, environment=environment)
        assert run.status == 0, run.err
        ((_, _, headers),) = configured.seen + evil.seen
        assert ("Authorization" in headers) == is_sent


def test_a_token_of_the_environment_without_a_hub_goes_where_the_user_says(
    evil: HostileHub,
) -> None:
    evil.answers["GET /v1/whoami"] = reply({"name": "ann"})
    run = deltahub("whoami", "--url", evil.url, environment={"DELTAHUB_TOKEN": "dh_secret"})
    assert run.status == 0, run.err
    assert evil.seen[0][2]["Authorization"] == "Bearer dh_secret"


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="holds a user, a password or a query") as refused:
        Hub("http://ann:secret@127.0.0.1:1")
    assert "secret" not in str(refused.value)
