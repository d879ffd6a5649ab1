"""Bodies on the move in bounded memory: the only asynchronous code of the server.

Down: a response pulls chunks from a blocking iterator, one ahead of the socket. Up: an iterator
for a blocking reader is fed by the event loop through a few slots. Either way the slower side
holds the faster one back, and nothing else grows.
"""

import asyncio
import logging
import math
import queue
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Self

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deltahub.server.chunks import Chunk
from deltahub.server.turns import Turns, Who

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
# Blocks between the socket and the disk, per upload.
UPLOAD_SLOTS = 2
# What is read at a time of a body that is dropped.
DISCARDED_BYTES = 64 << 10
_END = object()


class BodyCut(Exception):
    """The client went away before its body ended."""

    code = "body_cut"


class BodyLimit(Exception):
    """A body grew over its limit."""

    code = "limit_exceeded"


class ChunkStream(Response):
    """A response whose body is what `chunks` yields; its size is known before.

    `chunks` runs in the threads of `decoding`, which all responses share, from when `turns` has
    one for `who`: that bounds what slow clients make the server hold, two chunks each. A client
    has idle_s to take a chunk, and less while others wait for a turn. What fails before the first
    chunk is there raises. If it fails later, the connection is cut: the client sees fewer bytes
    than announced, never padding. When the client goes away, `chunks` is closed after the one in
    hand.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        decoding: Executor,
        turns: Turns,
        who: Who,
        *,
        status_code: int,
        headers: Mapping[str, str],
        idle_s: float,
        label: str,
    ) -> None:
        super().__init__(status_code=status_code, headers=dict(headers))
        self._idle_s = idle_s
        self._chunks = chunks
        self._decoding = decoding
        self._turns = turns
        self._who = who
        self._label = label
        self._making: Future[None] | None = None
        # Since when the client takes a chunk, and until when; without end while there is none.
        self._since = 0.0
        self._patience: anyio.CancelScope | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._turns.turn(self._who, self):
                first = await self._next()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch, receive, group.cancel_scope)
                    await self._send_all(send, first)
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if self._making is not None and not self._making.cancel():
                    # It has begun, and a generator in use cannot be closed.
                    await asyncio.wrap_future(self._making)
                await anyio.to_thread.run_sync(_close, self._chunks)

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                scope.cancel()
                return

    async def _send_all(self, send: Send, first: Chunk | None) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        chunk = first
        # One scope for all chunks: to make one for each takes longer than to hand it on.
        with anyio.CancelScope() as self._patience:
            try:
                while chunk is not None:
                    # Returns once the chunk before is through the socket, and this one on its
                    # way: meanwhile the next one is decoded.
                    self._be_patient(self._patience)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    self._patience.deadline = math.inf
                    chunk = await self._next()
                self._be_patient(self._patience)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except Exception as error:
                # Not completing the response makes the server cut the connection.
                log.error("stream=%s cut: %s: %s", self._label, type(error).__name__, error)
        if self._patience.cancelled_caught:
            waited_s = anyio.current_time() - self._since
            log.error("stream=%s cut: no chunk taken within %.1f s", self._label, waited_s)

    def waited_s(self) -> float:
        """Since when the client takes the chunk that it has; 0 while it waits for one itself."""
        is_sending = self._patience is not None and self._patience.deadline != math.inf
        return anyio.current_time() - self._since if is_sending else 0.0

    def cut(self) -> None:
        """Ends the response where it is. Precondition: waited_s() > 0."""
        assert self._patience is not None
        self._patience.deadline = -math.inf

    def _be_patient(self, patience: anyio.CancelScope) -> None:
        self._since = anyio.current_time()
        patience.deadline = self._since + self._idle_s

    def _next(self) -> "asyncio.Future[Chunk | None]":
        """The next chunk, which a thread makes. Who waits for it may be cancelled meanwhile.

        Not run_in_executor: a shield around its future, and what that takes to copy the result
        from one future to the other, would cost more than all else here.
        """
        loop = asyncio.get_running_loop()
        ahead: asyncio.Future[Chunk | None] = loop.create_future()
        self._making = self._decoding.submit(_make, self._chunks, loop, ahead)
        return ahead


def _make(
    chunks: Iterator[Chunk],
    loop: asyncio.AbstractEventLoop,
    ahead: "asyncio.Future[Chunk | None]",
) -> None:
    try:
        chunk = next(chunks, None)
    except BaseException as error:  # whatever it is: somebody waits
        loop.call_soon_threadsafe(_fail, ahead, error)
    else:
        loop.call_soon_threadsafe(_settle, ahead, chunk)


def _settle(ahead: "asyncio.Future[Chunk | None]", chunk: Chunk | None) -> None:
    if not ahead.done():  # or who waited was cancelled
        ahead.set_result(chunk)


def _fail(ahead: "asyncio.Future[Chunk | None]", error: BaseException) -> None:
    if not ahead.done():
        ahead.set_exception(error)


def _close(chunks: Iterator[Chunk]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


def too_large(max_bytes: int, whose: str = "a request") -> BodyLimit:
    """The refusal of a body that has more bytes than that."""
    return BodyLimit(f"the body is larger than the limit of {max_bytes} bytes for {whose}")


async def read_body(
    request: Request, max_bytes: int, idle_s: float, whose: str = "a request"
) -> bytes:
    """A whole body. Raises BodyLimit when it is larger than `max_bytes`, BodyCut."""
    pieces: list[bytes] = []
    n_bytes = 0
    async for block in _blocks(request, idle_s, min(BLOCK_BYTES, max_bytes + 1)):
        n_bytes += len(block)
        if n_bytes > max_bytes:
            request.state.has_unread_body = True
            raise too_large(max_bytes, whose)
        pieces.append(block)
    return b"".join(pieces)


async def discard_body(request: Request, max_bytes: int, idle_s: float) -> None:
    """Reads a body of which nothing is needed, and keeps none of it. Raises as read_body does."""
    n_bytes = 0
    async for block in _blocks(request, idle_s, DISCARDED_BYTES):
        n_bytes += len(block)
        if n_bytes > max_bytes:
            request.state.has_unread_body = True
            raise too_large(max_bytes)


async def _blocks(
    request: Request, idle_s: float, block_bytes: int = BLOCK_BYTES
) -> AsyncIterator[bytes]:
    """The body in blocks of at least `block_bytes`: small reads would cost a thread hop each.

    Raises BodyCut, after what came, when the client goes away or needs `idle_s` for a block.
    """
    stream = request.stream()
    is_over = False
    cut: str | None = None
    while not is_over and cut is None:
        pieces: list[bytes] = []
        n_bytes = 0
        try:
            with anyio.fail_after(idle_s):
                while n_bytes < block_bytes and not is_over:
                    piece = await anext(stream, None)
                    if piece is None:
                        is_over = True
                    else:
                        pieces.append(piece)
                        n_bytes += len(piece)
        except ClientDisconnect:
            cut = "the client went away before its body ended"
        except TimeoutError:
            cut = f"the client took more than {idle_s:g} s for {block_bytes} bytes"
        if n_bytes:
            yield b"".join(pieces)
    if cut is not None:
        raise BodyCut(cut)


class BodyFeed:
    """A request body as an iterator of blocks for one thread. Used once, inside `async with`.

    Nothing is read before the thread asks for the first block: a refusal that comes before that
    costs the client no transfer (it was told to wait with `Expect: 100-continue`).
    """

    def __init__(self, request: Request, idle_s: float) -> None:
        self._request = request
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(UPLOAD_SLOTS)
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._pump: asyncio.Task[None] | None = None
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
        """The body's blocks in order, for a thread. Raises BodyCut after what came."""
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
            async for block in _blocks(self._request, self._idle_s):
                await self._slots.acquire()
                self._queue.put(block)
            last = _END
        except BodyCut as error:
            last = error
        finally:
            self._queue.put(last)
