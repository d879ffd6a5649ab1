"""Clients that read nothing do not block users, and do not block other guests for long."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from http.client import HTTPResponse
from urllib.parse import urlsplit

import anyio
import pytest
from starlette.requests import Request

from deltahub.registry.db.models import XetRange, Xorb, utc_now
from deltahub.registry.errors import Busy
from deltahub.registry.xet.hashes import to_text
from deltahub.server.settings import ServerSettings
from deltahub.server.streaming import client_slots
from deltahub.server.streaming.client_slots import ClientKey, FairQueue, client_key
from support.registry.xet import repository_row
from support.service.hub import RunningHub, running_hub

BIG = bytes(24 << 20)
SMALL = b"a few bytes"
MEDIUM = bytes(1 << 20)
PATH = "/v1/repositories/admin/model/files/"


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    settings = ServerSettings(
        max_streams=8, streams_per_user=3, stop_grace_s=2, trusted_proxies="127.0.0.1"
    )
    folder = tmp_path_factory.mktemp("stalled")
    with running_hub(folder / "data", server_settings=settings) as running:
        running.create("admin/model")
        running.commit("admin/model", {"big": BIG, "medium": MEDIUM, "small": SMALL})
        yield running


def of_address(address: str) -> str:
    """The head of a guest's download, with the address as a proxy passes it on."""
    return f"GET {PATH}big HTTP/1.1\r\nHost: hub\r\nX-Forwarded-For: {address}\r\n\r\n"


def stall(hub: RunningHub, stack: ExitStack, head: str, n: int) -> list[socket.socket]:
    """Send n requests and read nothing of their answers."""
    found = []
    for _ in range(n):
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(hub.address)
        client.sendall(head.encode())
        found.append(client)
    time.sleep(0.5)
    return found


def read(hub: RunningHub, address: str, token: str | None = None, name: str = "medium") -> float:
    """Download a file; how many seconds it took."""
    began = time.monotonic()
    headers = {"X-Forwarded-For": address}
    answer = hub.call("GET", f"{PATH}{name}", token=token, headers=headers)
    assert (answer.status, answer.body) == (200, SMALL if name == "small" else MEDIUM)
    return time.monotonic() - began


def test_connections_that_read_nothing_hold_up_their_own_address_alone(hub: RunningHub) -> None:
    with ExitStack() as stack:
        stall(hub, stack, of_address("10.0.0.1"), 40)
        assert read(hub, "10.0.0.2") < 5
        assert read(hub, "10.0.0.1", hub.admin_token) < 5
        # Small answers do not wait for the stalled downloads of the same address.
        assert read(hub, "10.0.0.1", name="small") < 5


def test_guests_of_many_addresses_leave_room_for_users_and_are_cut_where_others_wait(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_slots, "SLOW_S", 2.0)
    with ExitStack() as stack:
        for n in range(6):
            stall(hub, stack, of_address(f"10.0.0.{n}"), 1)
        assert read(hub, "10.0.0.1", hub.admin_token) < 5
        assert "no chunk taken" not in caplog.text
        assert read(hub, "10.0.1.1") < 30  # idle_s is 120
        assert caplog.text.count("no chunk taken within") == 1


def test_more_downloads_than_a_client_may_have_at_once_wait_and_all_come(hub: RunningHub) -> None:
    """Like a client that fetches many ranges of a file in parallel."""
    pieces: dict[int, bytes] = {}
    step = len(BIG) // 48

    def fetch(start: int) -> None:
        headers = {"Range": f"bytes={start}-{start + step - 1}"}
        answer = hub.call("GET", f"{PATH}big", headers=headers)
        assert answer.status == 206
        pieces[start] = answer.body

    threads = [threading.Thread(target=fetch, args=(at,)) for at in range(0, len(BIG), step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    whole = b"".join(pieces[start] for start in sorted(pieces))
    assert sha256(whole).digest() == sha256(BIG).digest()


def answered(clients: list[socket.socket], least: int) -> list[socket.socket]:
    """Wait until at least `least` clients have been sent something; these clients."""
    deadline = time.monotonic() + 20
    while len(found := select.select(clients, [], [], 0)[0]) < least:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def many_chunks(hub: RunningHub, name: str) -> tuple[bytes, int]:
    """(first chunk of a file with the most chunks that an answer names, bytes of that answer)."""
    head = bytes(range(32))
    chunks = (head + (8192).to_bytes(4, "little")) * 8192
    place = repository_row(hub.registry, name)
    with hub.registry.db.write() as session:
        for n in range(32):
            xorb = sha256(bytes([n])).digest()
            session.add(
                XetRange(
                    xorb=xorb, first=0, end=1, sha256=sha256(SMALL).hexdigest(), offset=n * 8192,
                    chunks=chunks[:36], head=None if n else head, domain_id=place.domain_id,
                )
            )  # fmt: skip
            session.add(
                Xorb(
                    id=f"{n:032x}", repository_id=place.id, hash=xorb, size=8192 * 8192,
                    chunks=chunks, state="live", expires_at=utc_now() + timedelta(hours=1),
                )
            )  # fmt: skip
    return head, 32 * (1 + 8192) * 48


def test_of_answers_that_name_chunks_a_user_who_reads_nothing_is_sent_few(hub: RunningHub) -> None:
    chunk, n_bytes = many_chunks(hub, "admin/model")
    service = hub.call("GET", "/api/models/admin/model/xet-write-token/main", token=hub.admin_token)
    url = f"{urlsplit(service.json()['casUrl']).path}/v1/chunks/default/{to_text(chunk)}"
    token = service.json()["accessToken"]
    head = f"GET {url} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n\r\n"
    with ExitStack() as stack:
        clients = stall(hub, stack, head, 8)
        served = answered(clients, 3)
        time.sleep(1)
        assert len(answered(clients, 3)) == len(served) == 3
        for client in served:
            client.close()
        # Waiting requests are served as soon as these clients are gone.
        client = answered([client for client in clients if client not in served], 1)[0]
        answer = HTTPResponse(client)
        answer.begin()
        assert answer.status == 200
        assert len(answer.read()) > n_bytes


@dataclass(eq=False)
class Slow:
    """The holder of a slot that has waited for its client for n_s seconds."""

    n_s: float
    is_cut: anyio.Event = field(default_factory=anyio.Event)

    def waited_s(self) -> float:
        return 0.0 if self.is_cut.is_set() else self.n_s

    def cut(self) -> None:
        self.is_cut.set()


def test_turns_are_bounded_by_who_asks_and_nothing_is_kept_of_who_has_gone() -> None:
    async def scenario() -> None:
        queue = FairQueue("does 4 things at once", 4, 2, 0.2, guests=3)

        async def fails(key: ClientKey) -> bool:
            with suppress(Busy):
                async with queue.slot(key):
                    return False
            return True

        async with queue.slot("a"), queue.slot("a"):
            assert await fails("a")
            async with queue.slot("b"):
                assert await fails("c")
                async with queue.slot(1):
                    assert await fails(2)
            assert not await fails("b")
        assert (queue._n_held, queue._held, queue._waiting) == ({}, {}, {})

    anyio.run(scenario)


def test_of_slow_ones_no_more_are_cut_than_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_slots, "CHECK_INTERVAL_S", 0.01)

    async def scenario() -> None:
        queue = FairQueue("does 4 things at once", 4, 2, 20, guests=3)
        held = [Slow(70), Slow(90), Slow(50), Slow(99)]

        async def hold(key: ClientKey, slow: Slow) -> None:
            async with queue.slot(key, slow):
                await slow.is_cut.wait()

        async def is_cut() -> list[bool]:
            await anyio.sleep(0.1)
            return [slow.is_cut.is_set() for slow in held]

        async with anyio.create_task_group() as group:
            for key, slow in zip(("a", "b", "c", 1), held, strict=True):
                group.start_soon(hold, key, slow)
            assert await is_cut() == [False] * 4, "nobody waits"
            async with queue.slot("d"):
                # A guest gets the slot of a guest.
                assert await is_cut() == [False, True, False, False]
                async with queue.slot(2):
                    assert await is_cut() == [False, True, False, True]
                    async with queue.slot(3):
                        assert await is_cut() == [True, True, False, True]
            held[2].cut()

    anyio.run(scenario)


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3"),
        ("unknown", "unknown"),
    ],
)
def test_guests_are_known_by_what_they_cannot_choose_of_their_address(host: str, key: str) -> None:
    assert client_key(Request({"type": "http", "client": (host, 1)}), None) == key
