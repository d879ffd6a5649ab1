"""Turns of handlers that run in threads: few at once, shared fairly between users and addresses.

The threads share one interpreter and one limit of 40. Without turns, the requests of one client
would take all of them, and nobody else would be answered.
"""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from deltahub.registry import cancellation
from deltahub.registry.errors import Unauthorized
from deltahub.server.hub import Hub, caller_of
from deltahub.server.streaming.client_slots import ClientKey, FairQueue, client_key
from deltahub.server.streaming.long_answers import HeldAnswer

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Handle: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Cost:
    """What a handler in a thread may cost. writes: it may change something, and so wait for others.

    is_long: its answer may be longer than a connection buffers. is_heavy: its memory grows with the
    number of tensors; a long answer of this kind is in memory until it is sent. is_bounded: the
    answer has a limit, so that others are made while it is sent.
    """

    writes: bool = False
    is_long: bool = False
    is_heavy: bool = False
    is_bounded: bool = False

    def queue(self, hub: Hub) -> FairQueue:
        """Return the queue of its turns."""
        if self.writes:
            return hub.writes
        return hub.heavy_reads if self.is_heavy else hub.reads


_COSTS: Final[dict[Callable[..., Any], Cost]] = {}
_READING: Final = frozenset({"GET", "HEAD"})


def reads(
    *, is_long: bool = False, is_heavy: bool = False, is_bounded: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare what a handler costs that only reads. Without it, GET and HEAD are short reads."""

    def declare(endpoint: Endpoint) -> Endpoint:
        _COSTS[endpoint] = Cost(is_long=is_long, is_heavy=is_heavy, is_bounded=is_bounded)
        return endpoint

    return declare


def cost_of(endpoint: Callable[..., Any], methods: set[str]) -> Cost | None:
    """Return the cost of a handler; None for one that runs in the event loop."""
    if iscoroutinefunction(endpoint):
        return None
    return _COSTS.get(endpoint, Cost(writes=not methods <= _READING))


def in_turn(handle: Handle, cost: Cost) -> Handle:
    """Return the handler, called once the client has a turn. Raises Busy, and Cancelled.

    A turn ends when the answer is made. The slot of a long answer ends when it is sent.
    """

    async def answer(request: Request) -> Response:
        hub: Hub = request.app.state.hub
        client = await client_of(request, hub)
        turns = cost.queue(hub)
        held = HeldAnswer(hub.settings.idle_s)
        async with AsyncExitStack() as until_sent, AsyncExitStack() as until_made:
            if cost.is_long and cost.is_heavy and not cost.is_bounded:
                await until_sent.enter_async_context(turns.slot(client, held))
            else:
                if cost.is_long:
                    await until_sent.enter_async_context(hub.long_answers.slot(client, held))
                await until_made.enter_async_context(turns.slot(client))
            cancellation.check()  # the client may have left while it waited
            made = await handle(request)
            return held.hold(made, until_sent.pop_all()) if cost.is_long else made

    return answer


async def client_of(request: Request, hub: Hub) -> ClientKey:
    """Return the key that a request's turns are counted for."""
    try:
        return client_key(request, await caller_of(request, hub))
    except Unauthorized:
        # The handler refuses the token, or takes it for one of another kind.
        return client_key(request, None)
