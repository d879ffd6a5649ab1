"""Limits on request bodies that are read whole, applied before anything parses them.

They hold for every route, except for those declared with `streams_body`: their handlers read the
body themselves.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from deltahub.server.connections.exchanges import ROUTE_KEY
from deltahub.server.hub import Hub, caller_of
from deltahub.server.streaming.bodies import read_body, too_large
from deltahub.server.streaming.body_wait import BodyWait
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.turns import Handle, cost_of, in_turn

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

# Largest body for the many small slots, and largest body without a token: requests for the paths of
# a model, or for the frames of its tensors, need none. Larger bodies take one of the few large
# slots.
SMALL_BYTES: Final = 256 << 10

_STREAMING: Final[set[Callable[..., Any]]] = set()


def streams_body(endpoint: Endpoint) -> Endpoint:
    """Declare that a handler reads the body itself, within limits, after it knows the caller."""
    _STREAMING.add(endpoint)
    return endpoint


class BoundedRoute(APIRoute):
    """A route whose body is read in bounded time and memory, after the caller is authenticated.

    If the handler runs in a thread, the request then waits for a turn (turns.py).
    """

    @property
    def is_streaming(self) -> bool:
        """Whether the handler reads the body itself."""
        return self.endpoint in _STREAMING

    def get_route_handler(self) -> Handle:
        """Return FastAPI's handler, wrapped to read the body first."""
        handle = self._bounded_handler()

        async def noted(request: Request) -> Response:
            # Also of requests that get no turn: those who count requests ask for the route.
            setattr(request.state, ROUTE_KEY, self.path)
            return await handle(request)

        return noted

    def _bounded_handler(self) -> Handle:
        handle = super().get_route_handler()
        if self.is_streaming:
            # For a body parameter FastAPI would read the whole body before it calls the handler.
            assert self.body_field is None, f"{self.path} takes its body as a parameter"
            return handle
        cost = cost_of(self.endpoint, self.methods or set())
        if cost is not None:
            handle = in_turn(handle, cost)

        async def bounded(request: Request) -> Response:
            if not _has_body(request):
                return await handle(request)
            # The slot is held until the answer is made, not while it is sent.
            async with AsyncExitStack() as slots:
                request.state.has_unread_body = True
                body = await _read(request, slots)
                request.state.has_unread_body = False
                return await handle(Request(request.scope, _replay(body, request.receive)))

        return bounded


async def _read(request: Request, slots: AsyncExitStack) -> bytes:
    hub: Hub = request.app.state.hub
    limit = hub.registry.settings.max_request_json_bytes
    caller = await caller_of(request, hub)
    client = client_key(request, caller)
    if caller is None and limit > SMALL_BYTES:
        sender = "a request without a token"
        limit = SMALL_BYTES
    else:
        sender = "a request"
    # The HTTP parser has checked that the header is a number.
    announced = int(request.headers.get("content-length", limit))
    if announced > limit:
        raise too_large(limit, sender)
    queue = hub.small_bodies if announced <= SMALL_BYTES else hub.large_bodies
    wait = BodyWait()
    await slots.enter_async_context(queue.slot(client, wait))
    return await read_body(request, limit, hub.settings.idle_s, wait, sender)


def _has_body(request: Request) -> bool:
    return (
        request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
