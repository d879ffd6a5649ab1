"""Turns of handlers: one client's requests keep nobody from an answer, and end when it leaves."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from deltahub.server.settings import ServerSettings
from support.service.hub import RunningHub, running_hub

PATIENCE_S = 30


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(read_wait_s=PATIENCE_S, stop_grace_s=2)
    folder = tmp_path_factory.mktemp("turns") / "data"
    with running_hub(folder, server_settings=settings) as running:
        for number in range(20):
            running.create(f"admin/m{number}")
            running.commit(f"admin/m{number}", {"README.md": b"# %d" % number})
        yield running


class Blocked:
    """Searches of models stop in the database until they are released."""

    def __init__(self) -> None:
        self.n_begun = 0
        self.statements: list[str] = []
        self.has_begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.statements.append(statement)
        if "JOIN namespaces ON namespaces.id = anon_1" in statement:
            self.n_begun += 1
            self.has_begun.release()
            assert self.may_go_on.wait(PATIENCE_S)

    def wait_for(self, n: int) -> None:
        for _ in range(n):
            assert self.has_begun.acquire(timeout=PATIENCE_S)


@contextmanager
def blocked_searches() -> Iterator[Blocked]:
    blocked = Blocked()
    event.listen(Engine, "before_cursor_execute", blocked.note)
    try:
        yield blocked
    finally:
        blocked.may_go_on.set()
        event.remove(Engine, "before_cursor_execute", blocked.note)


def send(hub: RunningHub, path: str, method: str = "GET") -> socket.socket:
    connection = socket.create_connection(hub.address, timeout=PATIENCE_S)
    connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
    return connection


def wait_until_idle(hub: RunningHub) -> None:
    """Wait until every earlier guest's request has had its turn: a turn is first come, first."""
    assert hub.call("GET", "/api/models/admin/m0/refs").status == 200


def test_the_lists_of_guests_keep_no_user_from_an_answer(hub: RunningHub) -> None:
    with blocked_searches() as blocked:
        guests = [send(hub, "/api/models") for _ in range(45)]
        blocked.wait_for(2)  # as many as one address may have at once
        for path in ("/api/models/admin/m1", "/v1/whoami", "/admin/m2/resolve/main/README.md"):
            assert hub.call("GET", path, token=hub.admin_token).status == 200
        hub.create("admin/made-meanwhile")
        assert blocked.n_begun == 2
        for connection in guests:
            connection.close()
        blocked.may_go_on.set()
        wait_until_idle(hub)
        # The clients had left, so nothing was searched for the ones that waited.
        assert blocked.n_begun == 2


def test_a_list_stops_when_its_client_has_left(hub: RunningHub) -> None:
    with blocked_searches() as blocked:
        guest = send(hub, "/api/models?limit=20&expand=usedStorage")
        blocked.wait_for(1)
        guest.close()
        time.sleep(0.2)  # the hub notices the end of the connection
        blocked.statements.clear()
        blocked.may_go_on.set()
        wait_until_idle(hub)
        assert not [one for one in blocked.statements if "sum(" in one]
    answer = hub.call("GET", "/api/models?limit=20&expand=usedStorage")
    assert len(answer.json()) == 20


def test_who_waits_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    settings = ServerSettings(read_wait_s=0.3, read_threads=1, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as hub:
        hub.create("admin/m")
        with blocked_searches() as blocked:
            guest = send(hub, "/v1/repositories")
            blocked.wait_for(1)
            refused = hub.call("GET", "/v1/repositories/admin/m")
            assert (refused.status, refused.code) == (503, "busy")
            assert refused.headers["Retry-After"] == "1"
            assert "answers 1 reading requests at once" in refused.message
            refused = hub.call("GET", "/api/models/admin/m")
            assert (refused.status, refused.headers["X-Error-Code"]) == (503, "busy")
            assert hub.call("GET", "/v1/health/live").status == 200
            guest.close()
        assert hub.call("GET", "/v1/repositories/admin/m").status == 200


def test_changes_that_wait_leave_threads_to_readers(hub: RunningHub) -> None:
    tokens = [hub.user(f"turns-{number}") for number in range(4)]
    answers: list[int] = []

    def create(token: str, user: int, number: int) -> None:
        body = {"name": f"turns-{user}/m{number}"}
        answer = hub.call("POST", "/v1/repositories", token=token, body=body)
        answers.append(answer.status)

    threads = [
        threading.Thread(target=create, args=(token, user, number))
        for user, token in enumerate(tokens)
        for number in range(15)
    ]
    with hub.registry.db.write():  # all changes wait for this transaction
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        for path in ("/api/models/admin/m1", "/v1/whoami"):
            assert hub.call("GET", path, token=hub.admin_token).status == 200
        assert answers == []
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [201] * len(threads)
