"""Long lists are made while their client takes them, and end with it."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from deltahub.server import hub as hub_module
from deltahub.server.settings import ServerSettings
from support.service.hub import RunningHub, running_hub

N_FILES = 10_000
PATHS = [f"{i:05}{'/' + 'x' * 195}" * 5 for i in range(N_FILES)]
URL = "/api/models/admin/long?blobs=true"
N_PAGES = N_FILES // 1000 + 1


def fill(hub: RunningHub, name: str) -> None:
    """Make a model with a small file at each of PATHS."""
    hub.create(name)
    digest = hub.upload(b"x")
    operations = [{"op": "add", "path": path, "sha256": digest, "size": 1} for path in PATHS]
    path = f"/v1/repositories/{name}/commits"
    body = {"operations": operations}
    answer = hub.call("POST", path, token=hub.admin_token, body=body)
    assert answer.status == 201, answer.body


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(max_streams=1, read_wait_s=20, stop_grace_s=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "SLOW_ANSWER_S", 1.0)
        folder = tmp_path_factory.mktemp("long") / "data"
        with running_hub(folder, server_settings=settings) as running:
            for name in ("admin/long", "admin/deleted"):
                fill(running, name)
            yield running


@contextmanager
def pages_read() -> Iterator[list[str]]:
    """Statements that read a page of entries."""
    read: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "entries.mode" in statement and "ORDER BY entries.path" in statement:
            read.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield read
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def slow_client(hub: RunningHub, url: str = URL) -> socket.socket:
    """A client that has got the beginning of an answer and takes no more."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(hub.address)
    connection.sendall(f"GET {url} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def settled(read: list[str]) -> int:
    """Wait until no more pages are read; their number."""
    n, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        if len(read) != n:
            n, since = len(read), time.monotonic()
        time.sleep(0.02)
    return n


def test_what_a_client_does_not_take_is_not_made(hub: RunningHub) -> None:
    with pages_read() as read:
        with slow_client(hub):
            assert settled(read) < N_PAGES - 2
        n = settled(read)
        time.sleep(0.3)
        assert len(read) == n < N_PAGES


def test_a_client_that_takes_nothing_is_cut_when_others_wait(hub: RunningHub) -> None:
    with slow_client(hub) as slow:
        began = time.monotonic()
        answer = hub.call("GET", URL)
        assert time.monotonic() - began < 15  # idle_s is 120
        assert [item["rfilename"] for item in answer.json()["siblings"]] == PATHS
        got = 0
        while data := slow.recv(1 << 20):
            got += len(data)
        assert got < len(answer.body)


def test_a_list_of_what_is_deleted_meanwhile_is_cut_and_never_short(hub: RunningHub) -> None:
    with slow_client(hub, "/v1/repositories/admin/deleted/revision") as slow:
        path = "/v1/repositories/admin/deleted"
        assert hub.call("DELETE", path, token=hub.admin_token).status == 204
        rest = b""
        while data := slow.recv(1 << 20):
            rest += data
    assert not rest.endswith(b"0\r\n\r\n")
    assert b"]}" not in rest


def test_a_user_with_a_token_does_not_wait_for_guests_that_are_slow(tmp_path: Path) -> None:
    settings = ServerSettings(max_streams=2, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        fill(hub, "admin/long")
        with slow_client(hub):
            answer = hub.call("GET", URL, token=hub.admin_token)
            assert len(answer.json()["siblings"]) == N_FILES
