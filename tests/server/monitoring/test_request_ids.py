"""Every answer has the id of its request, through whichever door it came."""

import re
import socket

import pytest

from support.service.hub import RunningHub

VALID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@pytest.fixture(scope="module")
def name(hub: RunningHub) -> str:
    hub.create("admin/with-ids")
    hub.commit("admin/with-ids", {"a.bin": b"a" * 100_000})
    return "admin/with-ids"


def test_every_door_answers_with_an_id_of_its_own(hub: RunningHub, name: str) -> None:
    asked = [
        ("GET", "/v1/health/live", 200),
        ("GET", f"/v1/repositories/{name}", 200),
        ("GET", f"/v1/repositories/{name}/files/a.bin", 200),
        ("GET", f"/{name}/resolve/main/a.bin", 200),
        ("HEAD", f"/{name}/resolve/main/a.bin", 200),
        ("GET", f"/api/models/{name}", 200),
        ("POST", f"/{name}.git/info/lfs/objects/batch", 401),
        ("GET", "/cas/v1/reconstructions/nothing", 401),
        ("PUT", "/lfs/objects/nothing", 401),
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/health", 405),
        ("GET", "/v1/repositories/no/such", 404),
        ("GET", "/metrics", 401),
        ("GET", "/readyz", 200),
        ("GET", "/docs", 200),
        ("GET", "/", 200),
        ("GET", "/-/login", 200),
    ]
    seen = set()
    for method, path, status in asked:
        answer = hub.call(method, path)
        assert answer.status == status or (status == 401 and answer.status >= 400), path
        assert answer.headers.get_all("X-Request-Id") is not None, path
        (found,) = answer.headers.get_all("X-Request-Id")
        assert VALID.fullmatch(found)
        seen.add(found)
    assert len(seen) == len(asked)


def test_a_caller_may_choose_the_id(hub: RunningHub, name: str) -> None:
    for path in ("/v1/health/live", f"/{name}/resolve/main/a.bin", "/v1/nothing"):
        answer = hub.call("GET", path, headers={"X-Request-Id": "Root=1-67.a_b"})
        assert answer.headers["X-Request-Id"] != "Root=1-67.a_b"  # it has a =
        answer = hub.call("GET", path, headers={"X-Request-Id": "1-67.a_b"})
        assert answer.headers["X-Request-Id"] == "1-67.a_b"


@pytest.mark.parametrize("wrong", ["", "a" * 65, "a b", 'a"b', "a\tb", "ä", "a/b", "a;b"])
def test_an_id_that_could_harm_a_log_is_replaced(hub: RunningHub, wrong: str) -> None:
    answer = hub.call("GET", "/v1/health/live", headers={"X-Request-Id": wrong})
    assert VALID.fullmatch(answer.headers["X-Request-Id"])
    assert answer.headers["X-Request-Id"] != wrong


def test_requests_that_reach_no_handler_get_an_id(hub: RunningHub) -> None:
    for request in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ):
        with socket.create_connection(hub.address, timeout=20) as connection:
            connection.sendall(request)
            head = connection.recv(1 << 16).decode().lower()
        assert re.search(r"\r\nx-request-id: [a-z0-9._-]+\r\n", head), head


def test_two_requests_of_one_connection_have_two_ids(hub: RunningHub) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n"
    with socket.create_connection(hub.address, timeout=20) as connection:
        connection.sendall(
            2 * request + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        text = b""
        while part := connection.recv(1 << 16):
            text += part
    ids = re.findall(rb"\r\nx-request-id: (\S+)", text)
    assert len(ids) == len(set(ids)) == 3
