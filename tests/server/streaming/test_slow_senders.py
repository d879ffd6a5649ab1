"""Clients that send nothing, or little, give their slots up to others who wait."""

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from deltahub.registry.errors import Busy
from deltahub.server import hub as server_hub
from deltahub.server.settings import ServerSettings
from deltahub.server.streaming.body_wait import BodyWait
from deltahub.server.streaming.client_slots import ClientKey, FairQueue
from support.service.hf_door import batch, create_model
from support.service.hub import Answer, RunningHub, running_hub

SLOW_S = 1.0


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    monkeypatch.setattr(server_hub, "SMALL_BODIES", 16)
    monkeypatch.setattr(server_hub, "_SLOW_SMALL_BODY_S", SLOW_S)
    monkeypatch.setattr(server_hub, "_SLOW_BLOCK_S", SLOW_S)
    settings = ServerSettings(
        stop_grace_s=2, upload_threads=8, uploads_per_user=4, trusted_proxies="127.0.0.1",
        lfs_part_bytes=1000,
    )  # fmt: skip
    with running_hub(tmp_path / "data", server_settings=settings) as running:
        yield running


def begin(hub: RunningHub, stack: ExitStack, request: str, *headers: str) -> socket.socket:
    """A connection that has sent the head of a request, and one byte of the body."""
    connection = stack.enter_context(socket.create_connection(hub.address, timeout=20))
    lines = [f"{request} HTTP/1.1", "Host: hub", *headers, "", "{"]
    connection.sendall("\r\n".join(lines).encode())
    return connection


def begin_upload(hub: RunningHub, stack: ExitStack, token: str, data: bytes) -> socket.socket:
    """An upload whose client sends the first 600 bytes and then nothing."""
    connection = stack.enter_context(socket.create_connection(hub.address, timeout=20))
    head = (
        f"PUT /v1/uploads/{sha256(data).hexdigest()} HTTP/1.1\r\nHost: hub\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data[:600])
    return connection


def timed_upload(hub: RunningHub, token: str) -> float:
    began = time.monotonic()
    hub.upload(os.urandom(10), token)
    return time.monotonic() - began


def post_as_guest(hub: RunningHub, address: str) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = hub.call(
        "POST", "/v1/repositories", body={"name": "x/y"}, headers={"X-Forwarded-For": address}
    )
    return answer, time.monotonic() - began


def test_slow_guests_of_many_addresses_do_not_keep_others_out(hub: RunningHub) -> None:
    with ExitStack() as stack:
        slow = [
            begin(
                hub, stack, "POST /v1/repositories", f"X-Forwarded-For: 10.0.0.{n}",
                "Content-Length: 1000",
            )
            for n in range(40)
        ]  # fmt: skip
        for n in range(3):
            answer, took_s = post_as_guest(hub, f"10.0.1.{n}")
            assert answer.status == 401
            assert took_s < 20  # idle_s is 120
        cut = slow[0].recv(1 << 16)
        assert cut.startswith(b"HTTP/1.1 503 ")
        assert b"came too slowly while other clients waited" in cut
        assert b"connection: close" in cut.lower()


def test_slow_guests_of_one_address_do_not_keep_each_other_out_for_long(hub: RunningHub) -> None:
    with ExitStack() as stack:
        for _ in range(12):
            begin(
                hub, stack, "POST /v1/repositories", "X-Forwarded-For: 10.0.0.1",
                "Content-Length: 1000",
            )  # fmt: skip
        answer, took_s = post_as_guest(hub, "10.0.0.1")
        assert (answer.status, took_s < 20) == (401, True)


def test_a_slow_sender_goes_on_while_nobody_waits(hub: RunningHub) -> None:
    with ExitStack() as stack:
        slow = begin(
            hub, stack, "POST /v1/repositories", "Content-Length: 18",
            "Content-Type: application/json",
        )  # fmt: skip
        time.sleep(2 * SLOW_S)
        slow.sendall(b'"name":"admin/x"}')
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_silent_uploads_of_two_users_do_not_delay_a_third(hub: RunningHub) -> None:
    one, two, three = (hub.user(name) for name in ("one", "two", "three"))
    with ExitStack() as stack:
        for token in [one] * 4 + [two] * 4:
            begin_upload(hub, stack, token, os.urandom(1000))
        time.sleep(0.3)
        # Two of eight slots are left for users who have none.
        assert timed_upload(hub, three) < 5


def test_a_user_with_many_silent_uploads_loses_one_to_a_user_with_none(hub: RunningHub) -> None:
    token = hub.user("many")
    with ExitStack() as stack:
        sent = [os.urandom(1000) for _ in range(4)]
        silent = {begin_upload(hub, stack, token, data): data for data in sent}
        for n in range(4):
            begin_upload(hub, stack, hub.user(f"single{n}"), os.urandom(1000))
        assert timed_upload(hub, hub.user("waits")) < 20
        (cut,) = select.select(list(silent), [], [], 20)[0]
        answer = cut.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"busy"' in answer
        # Its bytes are kept.
        path = f"/v1/uploads/{sha256(silent[cut]).hexdigest()}"
        assert hub.call("HEAD", path, token=token).headers["Upload-Offset"] == "600"


def test_parts_that_wait_for_a_part_that_never_comes_give_their_slots_up(hub: RunningHub) -> None:
    assert create_model(hub, "admin/parts").status == 200
    sent = batch(hub, "admin/parts", ("1" * 64, 20_000), transfers=("basic", "multipart")).json()[
        "objects"
    ][0]
    parts = sent["actions"]["upload"]["header"]
    with ExitStack() as stack:
        waiting = []
        for number in range(2, 6):
            path = urlsplit(parts[str(number)]).path
            waiting.append(begin(hub, stack, f"PUT {path}", "Content-Length: 1000"))
        for n in range(4):
            begin_upload(hub, stack, hub.user(f"single{n}"), os.urandom(1000))
        assert timed_upload(hub, hub.user("waits")) < 20
        (cut,) = select.select(waiting, [], [], 20)[0]
        assert cut.recv(1 << 16).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_takes_no_answer_is_disconnected(tmp_path: Path) -> None:
    settings = ServerSettings(stop_grace_s=2, idle_s=1, keep_alive_s=1)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, ExitStack() as stack:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(hub.address)
        # More answers than the kernel's buffers take.
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: hub\r\n\r\n" * 1000)
        deadline = time.monotonic() + 20
        while hub.server.traffic.sent_bytes < 1 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while hub.server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def _begin(queue: FairQueue, key: ClientKey, order: list[ClientKey]) -> None:
    async with queue.slot(key):
        order.append(key)
        await anyio.sleep(0.01)


def test_of_those_who_wait_the_client_with_the_fewest_slots_comes_first() -> None:
    async def scenario() -> None:
        queue = FairQueue("does 2 things at once", 2, 2, 20)
        order: list[ClientKey] = []
        async with anyio.create_task_group() as group:
            async with queue.slot("many"):
                async with queue.slot("other"):
                    for key in ("many", "many", "none", "one"):
                        group.start_soon(_begin, queue, key, order)
                        await anyio.sleep(0.01)
                await anyio.sleep(0.1)
        assert order == ["none", "one", "many", "many"]

    anyio.run(scenario)


def test_the_last_quarter_is_for_clients_that_have_none() -> None:
    async def scenario() -> None:
        queue = FairQueue("does 8 things at once", 8, 8, 0.05)
        async with anyio.create_task_group() as group:
            for _ in range(6):
                await group.start(_hold, queue, 1)
            with pytest.raises(Busy):
                async with queue.slot(1):
                    pass
            for key in (2, "guest"):
                await group.start(_hold, queue, key)
            with pytest.raises(Busy):
                async with queue.slot(3):
                    pass
            group.cancel_scope.cancel()

    anyio.run(scenario)


async def _hold(queue: FairQueue, key: ClientKey, task_status: anyio.abc.TaskStatus[None]) -> None:
    async with queue.slot(key):
        task_status.started()
        await anyio.sleep_forever()


def test_the_slowest_of_the_client_with_the_most_slots_is_cut() -> None:
    async def scenario() -> None:
        queue = FairQueue("does 4 things at once", 4, 3, 5, slow_s=0.05)
        waits: list[tuple[ClientKey, BodyWait]] = []

        async def send(key: ClientKey) -> None:
            wait = BodyWait()
            waits.append((key, wait))
            async with queue.slot(key, wait):
                with pytest.raises(TimeoutError), wait.for_block(60):
                    await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            for key in ("one", "many", "many", "other"):
                group.start_soon(send, key)
                await anyio.sleep(0.02)
            await anyio.sleep(0.1)
            async with queue.slot("new"):
                assert [wait.is_cut for _, wait in waits] == [False, True, False, False]
            for _, wait in waits:
                wait.cut()

    anyio.run(scenario)


def test_a_wait_that_was_cut_before_it_began_ends_at_once() -> None:
    async def scenario() -> None:
        wait = BodyWait()
        assert wait.waited_s() == 0
        wait.cut()
        with pytest.raises(TimeoutError), wait.for_block(60):
            await anyio.sleep_forever()
        assert wait.waited_s() == 0

    anyio.run(scenario)
