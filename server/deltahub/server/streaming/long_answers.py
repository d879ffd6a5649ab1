"""JSON answers of any length in bounded memory: made in pieces, sent as fast as the client takes.

A long answer holds one piece, and the transport holds PART_BYTES of it, however slow its client is.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from deltahub.registry import cancellation
from deltahub.registry.errors import Cancelled
from deltahub.server.streaming.client_slots import ClientKey, FairQueue

log = logging.getLogger(__name__)

# Bytes that are given to the connection at once. uvicorn takes the next ones when most are sent.
PART_BYTES: Final = 64 << 10
# Pieces wait for their turns longer than requests do: the client has a part of the answer already.
_PIECE_WAIT_S: Final = 120.0
_THREADS: Final = anyio.CapacityLimiter(math.inf)  # the turns bound them


class HeldAnswer(Response):
    """An answer that keeps slots until its client has taken it, or is too slow.

    It is also the holder of these slots: FairQueue cuts the one that waited longest in all.
    """

    def __init__(self, idle_s: float) -> None:
        """idle_s: longest time in which a client takes PART_BYTES."""
        self._idle_s = idle_s
        self._answer: Response | None = None
        self._slots = AsyncExitStack()
        self._waited_s = 0.0
        self._waits_since: float | None = None
        self._sending: anyio.CancelScope | None = None

    def hold(self, answer: Response, slots: AsyncExitStack) -> Response:
        """Return this answer, which sends `answer` and then leaves the slots."""
        self._answer, self._slots = answer, slots
        return self

    def waited_s(self) -> float:
        """Seconds that the hub has waited for the client in all; 0 before it sends."""
        since = self._waits_since
        return self._waited_s + (0.0 if since is None else time.monotonic() - since)

    def cut(self) -> None:
        """Abort the answer. Precondition: waited_s() > 0."""
        if self._sending is not None:
            self._sending.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._answer is not None
        async with self._slots:
            with anyio.CancelScope() as self._sending:
                await self._answer(scope, receive, self._in_parts(send))
            if self._sending.cancelled_caught:
                # uvicorn cuts the connection of an answer that was not completed.
                log.warning("path=%s cut: its client took too long", scope["path"])

    def _in_parts(self, send: Send) -> Send:
        async def send_parts(message: Message) -> None:
            body = message.get("body", b"")
            while len(body) > PART_BYTES:
                part, body = body[:PART_BYTES], memoryview(body)[PART_BYTES:]
                await self._wait_for(send, {**message, "body": bytes(part), "more_body": True})
            last = {**message, "body": bytes(body)} if "body" in message else message
            await self._wait_for(send, last)

        return send_parts

    async def _wait_for(self, send: Send, message: Message) -> None:
        self._waits_since = time.monotonic()
        with anyio.move_on_after(self._idle_s) as wait:
            await send(message)
        self._waited_s = self.waited_s()
        self._waits_since = None
        if wait.cancelled_caught:
            self.cut()
            await anyio.sleep_forever()  # the cancelled scope ends this


class PiecesAnswer(Response):
    """A JSON answer that is made while it is sent. An error cuts the connection.

    Each piece is made in a thread once `queue` has a turn for `client`.
    """

    media_type = "application/json"

    def __init__(
        self,
        pieces: Iterator[bytes],
        queue: FairQueue,
        client: ClientKey,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, headers=headers)
        del self.headers["content-length"]
        self._pieces = pieces
        self._queue = queue
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            while (piece := await self._next()) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Cancelled:
            return
        except Exception as error:
            log.exception("path=%s cut: %s", scope["path"], type(error).__name__)

    async def _next(self) -> bytes | None:
        async with self._queue.slot(self._client, timeout_s=_PIECE_WAIT_S):
            cancellation.check()
            take: Callable[[], bytes | None] = lambda: next(self._pieces, None)  # noqa: E731
            return await anyio.to_thread.run_sync(take, limiter=_THREADS)


def answer_in_pieces(
    pieces: Iterator[bytes],
    queue: FairQueue,
    client: ClientKey,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an answer with this JSON text. A short text is made now, so that its errors show."""
    first: list[bytes] = []
    n_bytes = 0
    for piece in pieces:
        first.append(piece)
        n_bytes += len(piece)
        if n_bytes > PART_BYTES:
            rest = _chained(b"".join(first), pieces)
            return PiecesAnswer(rest, queue, client, headers)
    return Response(b"".join(first), headers=headers, media_type="application/json")


def json_text(value: Any) -> bytes:
    """Return a value as compact JSON, as JSONResponse writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_with_lists(
    fields: Mapping[str, Any], lists: Mapping[str, Iterable[list[Any] | bytes]]
) -> Iterator[bytes]:
    """Yield the JSON of an object that has `fields`, and `lists` that are made in batches.

    A batch may be JSON text already: items with commas between them.
    """
    text, has_any = json_text(fields)[:-1], bool(fields)
    for name, batches in lists.items():
        text += (b"," if has_any else b"") + json_text(name) + b":["
        has_any = True
        is_first = True
        for batch in batches:
            if batch:
                items = batch if isinstance(batch, bytes) else json_text(batch)[1:-1]
                yield text + (b"" if is_first else b",") + items
                text, is_first = b"", False
        text += b"]"
    yield text + b"}"


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
