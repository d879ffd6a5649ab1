"""Server-sent events: an answer that stays open and tells what changes."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deltahub.registry import cancellation
from deltahub.registry.errors import Cancelled, RegistryError

# Time between two looks.
LOOK_INTERVAL_S: Final = 0.5
# A line without meaning keeps proxies from closing a silent connection.
SILENCE_S: Final = 15.0
# The client connects again; its token may have ended meanwhile.
LONGEST_S: Final = 3600.0
# A client that takes nothing for so long is cut.
IDLE_S: Final = 30.0


@dataclass(frozen=True)
class Event:
    """name: what happened; empty: a message without a name. data: plain JSON, or lines of text.

    number: the client says after a break which it saw.
    """

    name: str
    data: Mapping[str, Any] | str
    number: int | None = None

    def to_bytes(self) -> bytes:
        head = "" if self.number is None else f"id: {self.number}\n"
        head += f"event: {self.name}\n" if self.name else ""
        # A carriage return would end a line of the stream, too.
        lines = self.data.splitlines() if isinstance(self.data, str) else [json.dumps(self.data)]
        data = "".join(f"data: {line}\n" for line in lines)
        return f"{head}{data}\n".encode()


Look = Callable[[], tuple[Sequence[Event], bool]]
"""look(): what has happened since the last look, and whether that was all. Runs in a thread."""


class EventStream(Response):
    """Sends the events of `look` until nothing more will happen, or the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, look: Look, slots: AsyncExitStack) -> None:
        """slots: left when the stream ends."""
        super().__init__(None, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._look = look
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._slots:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            try:
                await self._send_events(send)
            except (Cancelled, TimeoutError):
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        started = sent = time.monotonic()
        is_over = False
        while not is_over and time.monotonic() - started < LONGEST_S:
            cancellation.check()
            try:
                events, is_over = await anyio.to_thread.run_sync(self._look)
            except RegistryError as error:
                detail = {"code": error.code, "message": str(error)}
                events, is_over = [Event("error", detail)], True
            text = b"".join(event.to_bytes() for event in events)
            if not text and time.monotonic() - sent > SILENCE_S:
                text = b": still there\n\n"
            if text:
                with anyio.fail_after(IDLE_S):
                    await send({"type": "http.response.body", "body": text, "more_body": True})
                sent = time.monotonic()
            if not is_over:
                await anyio.sleep(LOOK_INTERVAL_S)
