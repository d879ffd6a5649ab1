"""Waiting for one's turn, with an end: places for all, of which nobody may take too many."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv6Address, ip_address
from operator import itemgetter
from typing import Protocol, TypeAlias

import anyio
from starlette.requests import Request

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import Busy

# A user's id, or the address of a guest: who sends no token.
Who: TypeAlias = int | str


def who_asks(request: Request, caller: Caller | None) -> Who:
    """By whom a request's turns are counted: the user, or for a guest the client's address."""
    return _address(request) if caller is None else caller.user_id


def _address(request: Request) -> str:
    # Behind a trusted proxy this is the address that the proxy has named.
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        # The lower half is the client's own to choose, a new one for each connection if it likes.
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


# A client that takes a chunk of a download for longer has to go when others wait for its place.
SLOW_S = 60.0
# How often who waits looks for such a one.
LOOK_S = 1.0


class Holder(Protocol):
    """What has a turn and may be told to give it up."""

    def waited_s(self) -> float: ...
    def cut(self) -> None: ...


class Turns:
    """Places for `total` at once: `each` at most for one user or address, `guests` for all guests.

    bounds: what the hub does at once, as the refusal says it. Who finds no place waits, in the
    order of coming, for patience_s.
    """

    def __init__(
        self, bounds: str, total: int, each: int, patience_s: float, guests: int | None = None
    ) -> None:
        self._bounds = bounds
        self._each = each
        self._patience_s = patience_s
        self._all = anyio.Semaphore(total)
        self._guests = anyio.Semaphore(total if guests is None else guests)
        # Kept only while somebody has a turn or waits for one: addresses are without number.
        self._own: dict[Who, anyio.Semaphore] = {}
        self._n_asking: Counter[Who] = Counter()
        self._holders: dict[Holder, Who] = {}

    @asynccontextmanager
    async def turn(self, who: Who, holder: Holder | None = None) -> AsyncIterator[None]:
        """A place until the block ends; Busy if there is none in time.

        holder: what may be cut if it is slow and others wait, and ends the block then.
        """
        async with AsyncExitStack() as stack:
            with anyio.move_on_after(self._patience_s) as patience:
                # Last of all those that others want too: nobody waits with one of them in hand.
                await stack.enter_async_context(self._own_limit(who, stack))
                if isinstance(who, str):
                    await self._take(self._guests, stack)
                await self._take(self._all, stack)
            if patience.cancelled_caught:
                raise Busy(
                    f"no turn within {self._patience_s:g} s: this hub {self._bounds};"
                    " wait and send it again"
                )
            if holder is not None:
                self._holders[holder] = who
                stack.callback(self._holders.pop, holder)
            yield

    async def _take(self, limit: anyio.Semaphore, stack: AsyncExitStack) -> None:
        if limit.value:
            await stack.enter_async_context(limit)
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_slow_ones, limit)
            await stack.enter_async_context(limit)
            group.cancel_scope.cancel()

    async def _cut_slow_ones(self, limit: anyio.Semaphore) -> None:
        """Cuts those that are too slow for others to wait for, one at a time."""
        while True:
            await anyio.sleep(LOOK_S)
            found = [
                (holder.waited_s(), holder)
                for holder, who in self._holders.items()
                if limit is self._all or isinstance(who, str)
            ]
            waited_s, slowest = max(found, key=itemgetter(0), default=(0.0, None))
            if slowest is not None and waited_s > SLOW_S:
                slowest.cut()

    def _own_limit(self, who: Who, stack: AsyncExitStack) -> anyio.Semaphore:
        if who not in self._own:
            self._own[who] = anyio.Semaphore(self._each)
        self._n_asking[who] += 1
        stack.callback(self._leave, who)
        return self._own[who]

    def _leave(self, who: Who) -> None:
        self._n_asking[who] -= 1
        if not self._n_asking[who]:
            del self._n_asking[who], self._own[who]
