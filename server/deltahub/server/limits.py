"""Bounds on bodies that are read whole, before anything parses them.

They hold for every route but those whose handlers read the body themselves, and say so.
"""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from deltahub.server.hub import Hub, caller_of
from deltahub.server.streaming.bodies import read_body, too_large
from deltahub.server.streaming.fair_queue import who_asks

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

# What takes one of the many places; larger bodies take one of the few, and need a token. A request
# for the paths of a model, or for the frames of its tensors, may come without one.
SMALL_BYTES: Final = 256 << 10

_STREAMING: Final[set[Callable[..., Any]]] = set()


def streams_body(endpoint: Endpoint) -> Endpoint:
    """Declares that a handler reads the body itself, within bounds, once it knows who sends it."""
    _STREAMING.add(endpoint)
    return endpoint


class BoundedRoute(APIRoute):
    """A route whose body is read in bounded time and memory, and only from who may send it."""

    @property
    def is_streaming(self) -> bool:
        """Whether the handler reads the body itself."""
        return self.endpoint in _STREAMING

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, on a request whose body is here."""
        handle = super().get_route_handler()
        if self.is_streaming:
            # FastAPI would read it for the parameter, whole, before the handler is called.
            assert self.body_field is None, f"{self.path} takes its body as a parameter"
            return handle

        async def bounded(request: Request) -> Response:
            if not _has_body(request):
                return await handle(request)
            # Held until the answer is made, and not while it is sent.
            async with AsyncExitStack() as places:
                request.state.has_unread_body = True
                body = await _read(request, places)
                request.state.has_unread_body = False
                return await handle(Request(request.scope, _replay(body, request.receive)))

        return bounded


async def _read(request: Request, places: AsyncExitStack) -> bytes:
    hub: Hub = request.app.state.hub
    limit = hub.registry.settings.max_request_json_bytes
    caller = await caller_of(request, hub)
    who = who_asks(request, caller)
    if caller is None and limit > SMALL_BYTES:
        whose = "a request without a token"
        limit = SMALL_BYTES
    else:
        whose = "a request"
    # The HTTP parser has checked that the number is one.
    announced = int(request.headers.get("content-length", limit))
    if announced > limit:
        raise too_large(limit, whose)
    turns = hub.small_bodies if announced <= SMALL_BYTES else hub.large_bodies
    await places.enter_async_context(turns.turn(who))
    return await read_body(request, limit, hub.settings.idle_s, whose)


def _has_body(request: Request) -> bool:
    return (
        request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
