"""Requests with their answers: each gets an id, and those who watch are told when it has ended."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.connections import request_ids

# The application notes here, in the state of a request's scope, which API and which route it is.
DOOR_KEY = "door"
ROUTE_KEY = "route"


class StreamedBody(Protocol):
    """A body that is no bytes: a thread sends it past the event loop."""

    sent_bytes: int


@dataclass
class Exchange:
    """A request and its answer.

    status: 500 until an answer begins, because a client gets that if none does.
    """

    scope: Scope
    request_id: str
    status: int = 500
    _written_bytes: int = 0
    _streamed: StreamedBody | None = None
    began_at: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method

    @property
    def body_bytes(self) -> int:
        """Bytes of the answer's body that were given to the connection."""
        streamed_bytes = 0 if self._streamed is None else self._streamed.sent_bytes
        return self._written_bytes + streamed_bytes

    def add_body(self, body: bytes | memoryview | StreamedBody) -> None:
        """Count a part of the answer's body."""
        if self.method == "HEAD":
            return  # the server sends no body
        if isinstance(body, bytes | memoryview):
            self._written_bytes += len(body)
        else:
            self._streamed = body

    @property
    def door(self) -> str:
        """Which API was asked: v1, hf, cas, lfs or s3; hub for all else, such as /metrics."""
        is_v1 = self.scope["path"].startswith("/v1/")
        return str(self._state.get(DOOR_KEY, "v1" if is_v1 else "hub"))

    @property
    def route(self) -> str:
        """The template of the route's path, without the names in it; "none" if no route matched."""
        path = self._state.get(ROUTE_KEY)
        if path is None:
            return "none"
        return f"/v1{path}" if self.door == "v1" else str(path)

    @property
    def _state(self) -> dict[str, object]:
        state: dict[str, object] = self.scope.get("state", {})
        return state


Watcher = Callable[[Exchange], None]


class Exchanges:
    """Middleware around the whole application. For the event loop's thread only."""

    def __init__(self, app: ASGIApp, watchers: Iterable[Watcher]) -> None:
        """watchers: called when an answer has ended, or could not be sent to its end."""
        self.n_open = 0  # requests whose answers have not ended
        self._app = app
        self._watchers = tuple(watchers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, request_ids.id_for(scope["headers"]))
        request_ids.use(exchange.request_id)
        header = (request_ids.HEADER, exchange.request_id.encode("ascii"))

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), header]}
            elif message["type"] == "http.response.body":
                exchange.add_body(message.get("body", b""))
            await send(message)

        self.n_open += 1
        try:
            await self._app(scope, receive, counted)
        finally:
            self.n_open -= 1
            exchange.seconds = time.perf_counter() - exchange.began_at
            for watch in self._watchers:
                watch(exchange)
