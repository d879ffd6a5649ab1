"""Whatever a client sends, it gets a status and a sentence, and the log no traceback."""

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from support.service.hub import ServedHub, served_hub

HOST = b"Host: 127.0.0.1\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
HEALTH = b"GET /v1/health/live HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedHub, Path]]:
    """(a hub that logs every request, its log)."""
    folder = tmp_path_factory.mktemp("odd")
    arguments = ("--no-worker", "--access-log")
    with (
        (folder / "log").open("wb") as log,
        served_hub(folder / "data", log=log, arguments=arguments) as hub,
    ):
        yield hub, folder / "log"


def answer_to(hub: ServedHub, request: bytes) -> bytes:
    """All that the hub sends until it closes the connection or is silent for a second."""
    with socket.create_connection(hub.address, timeout=1) as connection:
        got = b""
        with suppress(OSError):
            connection.sendall(request)
            while piece := connection.recv(1 << 16):
                got += piece
        return got


def check_log(log: Path) -> None:
    text = log.read_text()
    assert not re.findall(r"Traceback|ERROR|WARNING", text), text[-5000:]


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, 405, "OPTIONS * is not taken"),
        (b"GET * HTTP/1.1\r\n" + HOST, 405, "name a path"),
        (b"GET / HTTP/1.1\r\n" + HOST + UPGRADE, 400, "no WebSockets"),
        (b"GET /v1/whoami HTTP/1.1\r\n" + HOST + UPGRADE, 400, "no WebSockets"),
        (
            b"POST /v1/repositories HTTP/1.1\r\nContent-Length: 0\r\n" + HOST + UPGRADE,
            400,
            "no WebSockets",
        ),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n", 405, "no proxy"),
        (b"CONNECT /x HTTP/1.1\r\n" + HOST, 405, "no proxy"),
        (b"BREW /pot HTTP/1.1\r\n" + HOST, 405, "GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"get / HTTP/1.1\r\n" + HOST, 405, "GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"TRACE /v1/health/live HTTP/1.1\r\n" + HOST, 405, "there is no TRACE"),
        (b"PROPFIND /v1/health/live HTTP/1.1\r\n" + HOST, 405, "there is no PROPFIND"),
        (b"GET http://evil.example/v1/health/live HTTP/1.1\r\n" + HOST, 421, "evil.example"),
        (b"GET ftp://127.0.0.1/v1/health/live HTTP/1.1\r\n" + HOST, 400, "is a path"),
        (b"GET http:///v1/health/live HTTP/1.1\r\n" + HOST, 400, "Host"),
        (b"GET v1/health HTTP/1.1\r\n" + HOST, 400, "is a path"),
        (b"GET /\xff HTTP/1.1\r\n" + HOST, 400, "%XX"),
        (b"GET /v1/health/live?\xff HTTP/1.1\r\n" + HOST, 400, "%XX"),
        (b"GET /v1/health/live HTTP/1.1\r\n", 400, "needs a Host"),
        (b"GET /v1/health/live HTTP/1.1\r\n" + HOST + HOST, 400, "one Host header, not 2"),
        (b"GET /v1/health/live HTTP/1.1\r\nHost:\r\n", 400, "HOST:PORT"),
        (b"GET /v1/health/live HTTP/1.1\r\nHost: a b\r\n", 400, "HOST:PORT"),
        (b"GET /v1/health/live HTTP/1.1\r\nHost: u@127.0.0.1\r\n", 400, "HOST:PORT"),
        (b"GET /v1/health/live HTTP/1.1\r\nHost: \xff\r\n", 400, "HOST:PORT"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", 505, "HTTP/1.1"),
        (b"GET /v1/health/live HTTP/2.0\r\n" + HOST, 505, "HTTP/1.1"),
        (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", 400, "not HTTP"),
        (b"GET /v1/health/live HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n", 400, "not HTTP"),
        (b"GET /v1/health/live HTTP/1.1\r\n" + HOST + b"a:b\r\n" * 128, 400, "at most 128 headers"),
        (b"POST /v1/repositories HTTP/1.1\r\nContent-Length: -1\r\n" + HOST, 400, "not HTTP"),
        (b"GET /v1/%00%ff HTTP/1.1\r\n" + HOST, 404, "nothing at GET"),
    ],
)  # fmt: skip
def test_an_odd_request_is_answered_in_a_sentence(
    served: tuple[ServedHub, Path], request_: bytes, status: int, says: str
) -> None:
    hub, log = served
    head, _, body = answer_to(hub, request_ + b"\r\n").partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert says in json.loads(body)["error"]["message"]
    check_log(log)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/health/live HTTP/1.0\r\n",
        b"GET http://127.0.0.1/v1/health/live HTTP/1.1\r\nHost: evil.example\r\n",
        HEALTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
        HEALTH + b"Upgrade: websocket\r\nConnection: close\r\n",
    ],
)
def test_an_unusual_request_that_means_something_is_served(
    served: tuple[ServedHub, Path], request_: bytes
) -> None:
    hub, log = served
    answer = answer_to(hub, request_ + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"status":"ok"' in answer
    check_log(log)


def test_bytes_after_an_upgrade_are_no_request(served: tuple[ServedHub, Path]) -> None:
    hub, log = served
    offers = HEALTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = answer_to(hub, offers + HEALTH + b"\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()
    check_log(log)


def test_no_bytes_make_a_traceback(served: tuple[ServedHub, Path]) -> None:
    hub, log = served
    random = Random(27)
    parts = [
        b"GET", b"OPTIONS", b"POST", b" ", b"/", b"*", b"//", b"?", b"#", b"%00", b"%ff", b"%",
        b"http://", b"[::1]", b"[", b":", b"@", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", HOST,
        b"Host: ", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n",
        b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\nUpgrade: ", b"websocket", b"h2c",
        b"Range: bytes=", b"Authorization: Bearer ", b"v1/health", b"api/models", b"cas/xorbs/",
    ]  # fmt: skip
    for _ in range(300):
        line = random.choice([b"GET /", b"POST /v1/", b"OPTIONS ", b"GET http://", b""])
        tail = b"".join(random.choice(parts) for _ in range(random.randrange(12)))
        end = random.choice([b"", b" HTTP/1.1\r\n" + HOST + b"\r\n", b"\r\n\r\n", os.urandom(9)])
        with socket.create_connection(hub.address, timeout=10) as connection:
            with suppress(OSError):
                connection.sendall(line + tail + end)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)
    assert hub.call("GET", "/v1/health/live").status == 200
    check_log(log)
