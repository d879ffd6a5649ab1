"""Requests for a host name that is not the hub's are refused: no web page reads a private hub."""

import socket
from pathlib import Path

import pytest

from deltahub.server.connections.hosts import own_names
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, Hub, running_hub, served_hub

MACHINE = socket.gethostname().lower()


def ask(hub: Hub, host: str, path: str = "/v1/health/live") -> Answer:
    return hub.call("GET", path, headers={"Host": host})


def test_by_default_a_hub_is_known_by_addresses_and_as_localhost(tmp_path: Path) -> None:
    with served_hub(tmp_path / "data", arguments=("--no-worker",)) as hub:
        port = hub.address[1]
        for host in (
            "localhost", f"LocalHost.:{port}", "127.0.0.1", f"127.0.0.1:{port}", "[::1]:80",
            "192.168.7.9:8377", "[2001:db8::1]",
        ):  # fmt: skip
            assert ask(hub, host).status == 200, host
        for host in (
            "evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.io",
            "2130706433", MACHINE, f"{MACHINE}.evil.example",
        ):  # fmt: skip
            answer = ask(hub, host)
            assert (answer.status, answer.code) == (421, "wrong_host"), host
            assert host in answer.message
            assert "DELTAHUB_SERVER_HOSTS" in answer.message


def test_a_hub_that_listens_for_the_network_is_known_by_the_machines_name(tmp_path: Path) -> None:
    arguments = ("--no-worker", "--host", "0.0.0.0")
    environment = {"DELTAHUB_SERVER_HOSTS": "models.example.com, other.example"}
    with served_hub(tmp_path / "data", arguments=arguments, environment=environment) as hub:
        for host in (MACHINE, f"{MACHINE.partition('.')[0]}.local", "10.0.0.7:8377", "localhost"):
            assert ask(hub, host).status == 200, host
        assert ask(hub, "Models.Example.com:443").status == 200
        assert ask(hub, "other.example").status == 200
        assert ask(hub, "example.com").status == 421
        assert ask(hub, "evil.models.example.com").status == 421


def test_the_public_url_and_the_bound_name_count(tmp_path: Path) -> None:
    assert own_names("", "hub.lan", None) >= {"localhost", "hub.lan", MACHINE}
    settings = ServerSettings(stop_grace_s=2, public_url="https://Hub.example.com:8443")
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        assert ask(hub, "hub.example.com").status == 200
        # The name is compared before the public address replaces it.
        assert ask(hub, "evil.example").status == 421


def test_any_name_counts_where_the_operator_says_so(tmp_path: Path) -> None:
    with running_hub(
        tmp_path / "data", server_settings=ServerSettings(stop_grace_s=2, hosts="*")
    ) as hub:
        assert ask(hub, "whatever.example").status == 200


@pytest.mark.parametrize("path", ["/api/models", "/api/whoami-v2", "/a/b/resolve/main/x"])
def test_a_hugging_face_client_sees_the_sentence(path: str, tmp_path: Path) -> None:
    with running_hub(tmp_path / "data") as hub:
        answer = ask(hub, "evil.example", path)
        assert (answer.status, answer.headers["X-Error-Code"]) == (421, "wrong_host")
        assert "DELTAHUB_SERVER_HOSTS" in answer.json()["error"]
        assert answer.headers["X-Error-Message"] == answer.json()["error"]
        assert answer.headers["Connection"] == "close"
