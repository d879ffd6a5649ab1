"""Bodies written by one thread: complete, or cut in a way that clients notice."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from os import urandom
from pathlib import Path

import anyio
import pytest
from starlette.types import Message

from deltahub.server.settings import ServerSettings
from deltahub.server.streaming.bodies import ChunkStream
from deltahub.server.streaming.chunks import Chunk
from deltahub.server.streaming.client_slots import FairQueue
from deltahub.server.streaming.metering import CountingTransport, Traffic
from deltahub.server.streaming.socket_writer import ClientGone, NotTaken, SocketWriter, WrongSize
from support.service.hub import RunningHub, running_hub

KIB = 1 << 10
DATA = urandom(2 << 20)
FILE = "/v1/repositories/admin/files/files/model.bin"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Sockets (of the server, of the client) with small buffers."""
    server, client = socket.socketpair()
    for end in (server, client):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * KIB)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * KIB)
    client.settimeout(10)
    with server, client:
        yield server, client


def chunks(data: bytes, size: int, view: int) -> Iterator[Chunk]:
    whole = memoryview(data)
    for begin in range(0, len(data), size):
        part = whole[begin : begin + size]
        yield Chunk([part[i : i + view] for i in range(0, len(part), view)])


def attached(
    server: socket.socket, made: Iterator[Chunk], size: int, idle_s: float = 10
) -> tuple[SocketWriter, list[int]]:
    writer = SocketWriter(next(made), made, size, nullcontext(), idle_s)
    counted: list[int] = []
    writer.attach(server.fileno(), counted.append)
    return writer, counted


def received(client: socket.socket) -> bytes:
    found = bytearray()
    while piece := client.recv(64 * KIB):
        found += piece
    return bytes(found)


@pytest.mark.parametrize(("size", "view"), [(256 * KIB, 256 * KIB), (300_000, 1000), (7000, 10)])
def test_every_byte_comes_in_order(
    ends: tuple[socket.socket, socket.socket], size: int, view: int
) -> None:
    server, client = ends
    writer, counted = attached(server, chunks(DATA, size, view), len(DATA))
    server.close()  # the writer has a duplicate of the descriptor
    assert (len(writer), writer.has_connection) == (len(DATA), True)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(writer.run)
        assert received(client) == DATA
        done.result(10)
    assert sum(counted) == len(DATA)
    assert not writer.has_connection


def test_a_chunk_is_let_go_before_the_next_one_is_made(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    server, client = ends
    made: list[Chunk] = []

    def watched() -> Iterator[Chunk]:
        for chunk in chunks(DATA, 64 * KIB, 10 * KIB):
            assert all(not each.views for each in made)
            made.append(chunk)
            yield chunk

    writer, _ = attached(server, watched(), len(DATA))
    server.close()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(writer.run)
        assert received(client) == DATA
        done.result(10)


def test_a_client_that_takes_too_little_is_let_go(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    writer, counted = attached(ends[0], chunks(DATA, 256 * KIB, 256 * KIB), len(DATA), idle_s=0.2)
    with pytest.raises(NotTaken, match=r"0\.2 s"):
        writer.run()
    assert sum(counted) < 256 * KIB


def test_a_client_that_is_gone_is_told_from_other_errors(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    writer, _ = attached(ends[0], chunks(DATA, 256 * KIB, 256 * KIB), len(DATA))
    ends[1].close()
    with pytest.raises(ClientGone):
        writer.run()

    def broken() -> Iterator[Chunk]:
        yield Chunk([memoryview(b"ab")])
        raise OSError("the disk")

    server, client = socket.socketpair()
    with server, client, pytest.raises(OSError, match="the disk"):
        attached(server, broken(), 4)[0].run()


def test_what_is_cut_ends_though_nobody_reads(ends: tuple[socket.socket, socket.socket]) -> None:
    server, client = ends
    writer, _ = attached(server, chunks(DATA, 256 * KIB, 256 * KIB), len(DATA), idle_s=60)
    threading.Timer(0.2, writer.cut).start()
    began = time.monotonic()
    with pytest.raises(ClientGone):
        writer.run()
    assert time.monotonic() - began < 5
    got = received(client)
    assert len(got) < len(DATA)
    assert DATA.startswith(got)
    writer.cut()  # does nothing any more


def test_a_client_is_waited_for_only_while_it_has_a_chunk_to_take(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    server, client = ends
    is_making, may_go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[Chunk]:
        yield Chunk([memoryview(b"ab")])
        is_making.set()
        assert may_go_on.wait(10)
        yield from chunks(DATA, len(DATA), len(DATA))

    writer, _ = attached(server, slowly(), 2 + len(DATA))
    server.close()
    assert writer.waited_s() == 0
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(writer.run)
        assert is_making.wait(10)
        assert writer.waited_s() == 0
        may_go_on.set()
        deadline = time.monotonic() + 10
        while writer.waited_s() < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        writer.cut()
        with pytest.raises(ClientGone):
            done.result(10)
    assert writer.waited_s() == 0
    assert len(received(client)) < len(DATA)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_connection_that_takes_not_even_the_head_is_let_go(
    is_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The client sends several requests and reads none of the earlier answers."""
    pool = ThreadPoolExecutor(1)
    stream = ChunkStream(
        chunks(DATA, 64 * KIB, 64 * KIB),
        pool,
        nullcontext(),
        FairQueue("sends 1 file", 1, 1, 1),
        "guest",
        status_code=200,
        headers={"Content-Length": str(len(DATA))},
        idle_s=60 if is_cut else 0.2,
        label="model.bin",
    )

    async def never(message: Message | None = None) -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def scene() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(stream, {"type": "http"}, never, never)
            with anyio.fail_after(10):
                while is_cut and stream.waited_s() < 0.2:
                    await anyio.sleep(0.01)
            if is_cut:
                stream.cut()

    with pool:
        anyio.run(scene)
    assert stream.waited_s() == 0
    assert caplog.text.count("stream=model.bin cut: NotTaken: no chunk taken within 0.2 s") == 1


@pytest.mark.parametrize("announced", [len(DATA) - 1, len(DATA) + 1])
def test_a_body_of_another_size_is_never_taken_for_whole(
    ends: tuple[socket.socket, socket.socket], announced: int
) -> None:
    server, client = ends
    writer, _ = attached(server, chunks(DATA, 256 * KIB, 256 * KIB), announced)
    server.close()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(writer.run)
        got = received(client)
        with pytest.raises(WrongSize):
            done.result(10)
    assert len(got) < announced
    assert DATA.startswith(got)


def test_who_waits_for_a_connection_hears_of_it(ends: tuple[socket.socket, socket.socket]) -> None:
    async def scene() -> None:
        writer = SocketWriter(Chunk([memoryview(DATA)]), iter(()), len(DATA), nullcontext(), 1)
        waiting = asyncio.create_task(writer.attached())
        await asyncio.sleep(0)
        assert not waiting.done()
        writer.attach(ends[0].fileno(), lambda n: None)
        await waiting
        writer.close()  # run() was never called

    asyncio.run(scene())


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("out") / "data") as running:
        running.create("admin/files")
        running.commit("admin/files", {"model.bin": DATA * 8})
        yield running


def request(**headers: str) -> bytes:
    named = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {FILE} HTTP/1.1\r\nHost: hub\r\n{named}\r\n".encode()


def head_of(client: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    return head


def exactly(client: socket.socket, n: int) -> bytes:
    found = bytearray()
    while len(found) < n and (piece := client.recv(min(1 << 20, n - len(found)))):
        found += piece
    return bytes(found)


def test_answers_to_requests_sent_together_do_not_mix(hub: RunningHub) -> None:
    with socket.create_connection(hub.address, timeout=20) as client:
        client.sendall(request() + request(Range="bytes=5-9") + request())
        client.sendall(b"GET /v1/metrics HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
        for expected in (DATA * 8, DATA[5:10], DATA * 8):
            assert head_of(client).startswith(b"HTTP/1.1 20")
            assert exactly(client, len(expected)) == expected
        assert head_of(client).startswith(b"HTTP/1.1 401")
        assert json.loads(received(client))["error"]["code"] == "unauthorized"


class Connection(asyncio.Protocol):
    """The server's protocol for a connection whose client reads nothing yet."""

    counting: CountingTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.counting = CountingTransport(transport, Traffic())

    def resume_writing(self) -> None:
        self.counting.attach_if_drained()


@pytest.mark.parametrize("end", ["write", "close", "cut"])
def test_a_body_that_waits_for_its_head_never_follows_something_else(
    ends: tuple[socket.socket, socket.socket], end: str
) -> None:
    server, client = ends
    head = b"h" * (4 << 20)  # more than the connection's buffers hold
    made = chunks(DATA, 64 * KIB, 64 * KIB)
    writer = SocketWriter(next(made), made, len(DATA), nullcontext(), 10)

    async def serve() -> bytes:
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(Connection, sock=server.dup())
        connection.counting.write(head)
        connection.counting.write(writer)
        if end == "write":
            connection.counting.write(b"HTTP/1.1 400 Bad Request")
        elif end == "cut":
            writer.cut()
            transport.close()
        else:
            transport.close()
        server.close()
        return await asyncio.to_thread(received, client)

    got = asyncio.run(serve())
    assert head.startswith(got)
    assert (len(got) < len(head)) == (end == "write")
    assert not writer.has_connection


def test_what_is_no_request_cuts_a_body_and_adds_nothing_to_it(hub: RunningHub) -> None:
    with socket.create_connection(hub.address, timeout=20) as client:
        client.sendall(request())
        head_of(client)
        got = exactly(client, 1000)
        client.sendall(b"this is not HTTP\r\n\r\n" * 10)
        time.sleep(0.2)
        try:
            got += received(client)
        except ConnectionResetError:
            pass
    assert (DATA * 8).startswith(got)


def test_a_client_that_stops_reading_is_cut_off_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(idle_s=0.5, stop_grace_s=1)
    with running_hub(tmp_path / "data", server_settings=settings) as hub, socket.socket() as slow:
        hub.create("admin/files")
        hub.commit("admin/files", {"model.bin": DATA * 20})
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
        slow.settimeout(20)
        slow.connect(hub.address)
        slow.sendall(request())
        deadline = time.monotonic() + 15
        while "no chunk taken within 0.5 s" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        head_of(slow)
        got = received(slow)
        assert len(got) < len(DATA) * 20
        assert (DATA * 20).startswith(got)
