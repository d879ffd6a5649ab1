"""A fair queue: a limited number of slots, with a limit for each user or address."""

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

# The id of a user, or the address of a guest, a client without a token.
Who: TypeAlias = int | str


def who_asks(request: Request, caller: Caller | None) -> Who:
    """Return the key that a request's slots are counted for: the user's id or guest's address."""
    return _address(request) if caller is None else caller.user_id


def _address(request: Request) -> str:
    # Behind a trusted proxy this is the address in X-Forwarded-For.
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        # Only the /64 prefix counts: a client chooses the lower 64 bits freely for each connection.
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


# When others wait for a slot, a download is cut whose client takes longer than this for a chunk.
SLOW_S = 60.0
# Time between searches for such a download, while somebody waits.
LOOK_S = 1.0


class Holder(Protocol):
    """The holder of a slot, which can be made to give it up."""

    def waited_s(self) -> float: ...
    def cut(self) -> None: ...


class Turns:
    """`total` slots: at most `each` for one user or address, and `guests` for all guests together.

    A request without a slot waits up to patience_s seconds, first come, first served. bounds: the
    limits in words, for the refusal.
    """

    def __init__(
        self, bounds: str, total: int, each: int, patience_s: float, guests: int | None = None
    ) -> None:
        self._bounds = bounds
        self._each = each
        self._patience_s = patience_s
        self._all = anyio.Semaphore(total)
        self._guests = anyio.Semaphore(total if guests is None else guests)
        # An entry is kept only while its client has or wants a slot: addresses are unlimited.
        self._own: dict[Who, anyio.Semaphore] = {}
        self._n_asking: Counter[Who] = Counter()
        self._holders: dict[Holder, Who] = {}

    @asynccontextmanager
    async def turn(self, who: Who, holder: Holder | None = None) -> AsyncIterator[None]:
        """Hold a slot until the block ends. Raises Busy if none is free in time.

        holder: is cut if it is slow and others wait; cutting it must end the block.
        """
        async with AsyncExitStack() as stack:
            with anyio.move_on_after(self._patience_s) as patience:
                # The slots of all clients come last, so that nobody waits while holding one.
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
        """Cut the slowest download above SLOW_S, one in LOOK_S, until cancelled."""
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
