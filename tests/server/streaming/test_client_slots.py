"""More downloads or verifications than slots: the hub answers the rest with 503, busy."""

import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.client import Hub as Client
from deltahub.codecs.files.split import make_recipe, plan_file
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, RunningHub, running_hub

BIG = bytes(48 << 20)
SMALL = os.urandom(500)
MEDIUM = os.urandom(100_000)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    # idle_s: longer than a slow download takes for a chunk, half as long as it takes for all.
    settings = ServerSettings(max_streams=1, proof_threads=1, idle_s=1.2)
    folder = tmp_path_factory.mktemp("turns")
    with running_hub(folder / "data", server_settings=settings) as running:
        for name, data in (("admin/big", BIG), ("admin/medium", MEDIUM), ("admin/small", SMALL)):
            running.create(name)
            running.commit(name, {"f.bin": data})
        yield running


class SlowDownload(threading.Thread):
    """A download of a block every 0.1 s, within idle_s; after is_enough at full speed."""

    def __init__(self, hub: RunningHub) -> None:
        super().__init__()
        self.is_enough = threading.Event()
        self.n_bytes = 0
        self._connection = socket.create_connection(hub.address, timeout=20)
        head = "GET /v1/repositories/admin/big/files/f.bin HTTP/1.1\r\nHost: hub\r\n\r\n"
        self._connection.sendall(head.encode())
        self._response = http.client.HTTPResponse(self._connection)
        self._response.begin()  # from here on it has a slot

    def run(self) -> None:
        with self._connection:
            while block := self._response.read(1 << 20):
                self.n_bytes += len(block)
                self.is_enough.wait(0.1)


def refused(answer: Answer) -> str:
    """The message of an answer that asks the client to try again."""
    assert (answer.status, answer.code) == (503, "busy")
    assert int(answer.headers["Retry-After"]) > 0
    return answer.message


def test_a_download_that_has_no_turn_in_time_is_told_to_come_again_and_our_client_does(
    hub: RunningHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowDownload(hub)
    slow.start()
    path = "/v1/repositories/admin/medium/files/f.bin"
    message = refused(hub.call("GET", path))
    assert "sends 1 downloads at once" in message
    n_refused = caplog.text.count("code=busy")
    with Client(hub.url, hub.admin_token) as client, ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(client.pull, "admin/medium", to=tmp_path / "to")
        deadline = time.monotonic() + 20
        while caplog.text.count("code=busy") == n_refused:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        slow.is_enough.set()
        assert (pulled.result() / "f.bin").read_bytes() == MEDIUM
    slow.join()
    assert slow.n_bytes == len(BIG)


def test_a_proof_that_has_no_turn_in_time_is_told_to_come_again(hub: RunningHub) -> None:
    def read(start: int, n: int) -> bytes:
        return SMALL[start : start + n]

    plan = plan_file(read, len(SMALL), "f.bin")
    recipe = make_recipe(plan, sha256(SMALL).digest(), [], read).to_bytes()
    path = "/v1/repositories/admin/small/recipes"

    def prove() -> Answer:
        return hub.call("POST", path, token=hub.admin_token, body=recipe)

    with ThreadPoolExecutor(2) as pool:
        with hub.registry.db.write():  # the request with the slot waits for this transaction
            both = {pool.submit(prove), pool.submit(prove)}
            done, waiting = wait(both, timeout=20, return_when=FIRST_COMPLETED)
            assert len(done) == 1
        message = refused(done.pop().result())
        assert "checks 1 packs and recipes at once" in message
        assert waiting.pop().result().json()["state"] == "ready"
    assert prove().status == 200
