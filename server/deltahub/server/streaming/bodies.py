"""Bodies of requests and responses, in bounded memory.

Responses: a thread makes a chunk, writes it to the socket, then makes the next one. Requests: the
event loop passes blocks through a bounded queue to a thread that reads them from an iterator. In
both cases the slower side blocks the faster one.
"""

import asyncio
import logging
import math
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Self, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deltahub.server.connections.request_ids import carried
from deltahub.server.streaming.body_wait import BodyWait
from deltahub.server.streaming.chunks import Chunk
from deltahub.server.streaming.client_slots import ClientKey, FairQueue
from deltahub.server.streaming.socket_writer import ClientGone, NotTaken, SocketWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK_BYTES = 1 << 20
# Blocks that wait between the socket and the disk, per upload.
UPLOAD_SLOTS = 2
# Block size for a body that is read and dropped.
DISCARDED_BYTES = 64 << 10
# How long to wait until the event loop notices a lost connection that a thread has noticed.
_DISCONNECT_WAIT_S: Final = 5.0
_END = object()


class BodyCut(Exception):
    """The client disconnected, or was too slow, before its body ended."""

    code = "body_cut"


class SlowBody(BodyCut):
    """The client sent its body so slowly that another client got its slot."""

    code = "busy"

    def __init__(self) -> None:
        super().__init__(
            "the body came too slowly while other clients waited for a turn: send it again"
        )


class BodyLimit(Exception):
    """A body is larger than its limit."""

    code = "limit_exceeded"


class ChunkStream(Response):
    """A response of known size whose body is what `chunks` yields.

    Once `fair_queue` has a slot for `client`, a thread of `threads` makes each chunk, inside of
    `decode_slots`, and writes it (see SocketWriter), so the server holds about one chunk for each
    slow client. A client has idle_s to take a chunk, and less while others wait for a slot. An
    error before the first chunk is raised. After a later error the connection is cut: the client
    gets fewer bytes than announced, never padding. When the client disconnects, `chunks` is closed
    after the current chunk.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        threads: Executor,
        decode_slots: AbstractContextManager[object],
        fair_queue: FairQueue,
        client: ClientKey,
        *,
        status_code: int,
        headers: Mapping[str, str],
        idle_s: float,
        label: str,
    ) -> None:
        """threads: at least as many as slots. headers: must contain Content-Length."""
        super().__init__(status_code=status_code, headers=dict(headers))
        self._size = int(headers["Content-Length"])
        self._idle_s = idle_s
        self._chunks = chunks
        self._threads = threads
        self._decode_slots = decode_slots
        self._fair_queue = fair_queue
        self._client = client
        self._label = label
        self._work: Future[Any] | None = None
        # Before the body starts: since when we wait for the connection, and the scope of that wait.
        self._head_since = 0.0
        self._head_wait: anyio.CancelScope | None = None
        self._writer: SocketWriter | None = None
        # Whether all chunks were sent, so that `chunks` need not be closed.
        self._is_sent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._fair_queue.slot(self._client, self):
                first = await self._in_thread(self._first)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch, receive, group.cancel_scope)
                    await self._send_all(send, first)
                    group.cancel_scope.cancel()
        finally:
            if self._writer is not None:
                self._writer.cut()  # does nothing after the body was sent
            with anyio.CancelScope(shield=True):
                if self._work is not None and not (self._work.done() or self._work.cancel()):
                    # The thread uses the generator, which cannot be closed until it returns.
                    with suppress(Exception):  # nobody waits for its result any more
                        await asyncio.wrap_future(self._work)
                if self._writer is not None:
                    self._writer.close()
                if not self._is_sent:
                    await anyio.to_thread.run_sync(_close, self._chunks)

    def waited_s(self) -> float:
        """Seconds since we began to wait for the client; 0 while the client waits for us."""
        if self._head_wait is not None:
            return time.monotonic() - self._head_since
        return self._writer.waited_s() if self._writer is not None else 0.0

    def cut(self) -> None:
        """Abort the response. Precondition: waited_s() > 0."""
        if self._head_wait is not None:
            self._head_wait.deadline = -math.inf
        elif self._writer is not None:
            # Logged here: the thread and the event loop would see only a client that disconnected.
            self._log_cut(NotTaken(self._writer.waited_s()))
            self._writer.cut()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                scope.cancel()
                return

    async def _send_all(self, send: Send, first: Chunk | None) -> None:
        try:
            await self._get_connection(send, first)
            if self._writer is not None and not await self._in_thread(self._writer_sends_all):
                # The event loop notices that the connection was shut down, and cancels this task.
                # If the task ended before that, uvicorn would log an error of its own.
                with anyio.move_on_after(_DISCONNECT_WAIT_S):
                    await anyio.sleep_forever()
                return
            self._is_sent = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:
            # uvicorn cuts the connection of a response that was not completed.
            self._log_cut(error)

    def _writer_sends_all(self) -> bool:
        """Write the body, in a thread; False if the connection was shut down before its end.

        Logs why, because the task is cancelled once the event loop notices the shut connection.
        """
        assert self._writer is not None
        try:
            self._writer.run()
        except ClientGone:
            return False
        except Exception as error:
            self._log_cut(error)
            return False
        return True

    def _log_cut(self, error: Exception) -> None:
        log.error("stream=%s cut: %s: %s", self._label, type(error).__name__, error)

    async def _get_connection(self, send: Send, first: Chunk | None) -> None:
        """Send the head, and wait until the writer has the socket. Raises NotTaken."""
        self._head_since = time.monotonic()
        with anyio.move_on_after(self._idle_s) as self._head_wait:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            if first is not None:
                self._writer = SocketWriter(
                    first, self._chunks, self._size, self._decode_slots, self._idle_s
                )
                await send({"type": "http.response.body", "body": self._writer, "more_body": True})
                await self._writer.attached()
        waited_s, is_over = self.waited_s(), self._head_wait.cancelled_caught
        self._head_wait = None
        if is_over:
            raise NotTaken(waited_s)

    def _first(self) -> Chunk | None:
        with self._decode_slots:
            return next(self._chunks, None)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        future = self._threads.submit(carried(work))
        self._work = future
        return await asyncio.wrap_future(future)


def _close(chunks: Iterator[Chunk]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


def too_large(max_bytes: int, sender: str = "a request") -> BodyLimit:
    """Return the error for a body of more than max_bytes bytes. sender: the kind of request."""
    return BodyLimit(f"the body is larger than the limit of {max_bytes} bytes for {sender}")


async def read_body(
    request: Request, max_bytes: int, idle_s: float, wait: BodyWait, sender: str = "a request"
) -> bytes:
    """Read a whole body. Raises BodyLimit above `max_bytes` bytes, and BodyCut.

    wait: the holder of the slot that the request has.
    """
    pieces: list[bytes] = []
    n_bytes = 0
    async for block in _blocks(request, idle_s, wait, min(BLOCK_BYTES, max_bytes + 1)):
        n_bytes += len(block)
        if n_bytes > max_bytes:
            request.state.has_unread_body = True
            raise too_large(max_bytes, sender)
        pieces.append(block)
    return b"".join(pieces)


async def discard_body(request: Request, max_bytes: int, idle_s: float) -> None:
    """Read a body and drop it. Raises BodyLimit and BodyCut, as read_body does."""
    n_bytes = 0
    async for block in _blocks(request, idle_s, BodyWait(), DISCARDED_BYTES):
        n_bytes += len(block)
        if n_bytes > max_bytes:
            request.state.has_unread_body = True
            raise too_large(max_bytes)


async def _blocks(
    request: Request, idle_s: float, wait: BodyWait, block_bytes: int = BLOCK_BYTES
) -> AsyncIterator[bytes]:
    """Yield the body in blocks of at least `block_bytes`, except the last one.

    Small blocks would cost a thread switch each. If the client disconnects, or takes longer than
    `idle_s` for a block, or `wait` is cut, yields the bytes that came and then raises BodyCut.
    """
    stream = request.stream()
    is_over = False
    cut: BodyCut | None = None
    while not is_over and cut is None:
        pieces: list[bytes] = []
        n_bytes = 0
        try:
            with wait.for_block(idle_s):
                while n_bytes < block_bytes and not is_over:
                    piece = await anext(stream, None)
                    if piece is None:
                        is_over = True
                    else:
                        pieces.append(piece)
                        n_bytes += len(piece)
        except ClientDisconnect:
            cut = BodyCut("the client went away before its body ended")
        except TimeoutError:
            late = BodyCut(f"the client took more than {idle_s:g} s for {block_bytes} bytes")
            cut = SlowBody() if wait.is_cut else late
        if n_bytes:
            yield b"".join(pieces)
    if cut is not None:
        raise cut


class BodyFeed:
    """A request body as an iterator of blocks for one thread. Used once, inside `async with`.

    Nothing is read before the thread asks for the first block. A client that sends
    `Expect: 100-continue` is therefore refused before it has sent any of its body.
    """

    def __init__(self, request: Request, idle_s: float) -> None:
        self._request = request
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(UPLOAD_SLOTS)
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._pump: asyncio.Task[None] | None = None
        self.wait = BodyWait()
        self.is_started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
            await asyncio.wait({self._pump})

    @property
    def has_unread_body(self) -> bool:
        return self._pump is None or not self._pump.done() or self._pump.cancelled()

    def blocks(self) -> Iterator[bytes]:
        """Yield the blocks of the body to a thread. Raises BodyCut after the bytes that came."""
        self.is_started = True
        self._loop.call_soon_threadsafe(self._start)
        while True:
            item = self._queue.get()
            if item is _END:
                return
            if isinstance(item, BodyCut):
                raise item
            assert isinstance(item, bytes)
            self._loop.call_soon_threadsafe(self._slots.release)
            yield item

    def _start(self) -> None:
        self._pump = self._loop.create_task(self._move())

    async def _move(self) -> None:
        last: object = BodyCut("the server is stopping")
        try:
            async for block in _blocks(self._request, self._idle_s, self.wait):
                await self._slots.acquire()
                self._queue.put(block)
            last = _END
        except BodyCut as error:
            last = error
        finally:
            self._queue.put(last)
