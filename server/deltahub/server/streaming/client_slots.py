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
ClientKey: TypeAlias = int | str


def client_key(request: Request, caller: Caller | None) -> ClientKey:
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
CHECK_INTERVAL_S = 1.0


class SlotHolder(Protocol):
    """The holder of a slot, which can be made to give it up."""

    def waited_s(self) -> float: ...
    def cut(self) -> None: ...


class FairQueue:
    """`total` slots: at most `per_client` for one user or address, `guests` for all guests.

    A request without a slot waits up to timeout_s seconds, first come, first served. bounds: the
    limits in words, for the refusal. slow_s: when others wait, a holder may be cut that makes the
    hub wait longer; None for SLOW_S.
    """

    def __init__(
        self,
        bounds: str,
        total: int,
        per_client: int,
        timeout_s: float,
        guests: int | None = None,
        *,
        slow_s: float | None = None,
    ) -> None:
        self._bounds = bounds
        self._per_client = per_client
        self._timeout_s = timeout_s
        self._slow_s = slow_s
        self._total = anyio.Semaphore(total)
        self._guests = anyio.Semaphore(total if guests is None else guests)
        # An entry is kept only while its client has or wants a slot: addresses are unlimited.
        self._client_slots: dict[ClientKey, anyio.Semaphore] = {}
        self._n_requests: Counter[ClientKey] = Counter()
        self._holders: dict[SlotHolder, ClientKey] = {}

    @asynccontextmanager
    async def slot(
        self, key: ClientKey, holder: SlotHolder | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        """Hold a slot until the block ends. Raises Busy if none is free in time.

        holder: is cut if it is slow and others wait; cutting it must end the block. timeout_s: None
        for that of the queue.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        async with AsyncExitStack() as stack:
            with anyio.move_on_after(timeout_s) as timeout:
                # The slots of all clients come last, so that nobody waits while holding one.
                await stack.enter_async_context(self._client_limit(key, stack))
                if isinstance(key, str):
                    await self._take(self._guests, stack)
                await self._take(self._total, stack)
            if timeout.cancelled_caught:
                raise Busy(
                    f"no turn within {timeout_s:g} s: this hub {self._bounds};"
                    " wait and send it again"
                )
            if holder is not None:
                self._holders[holder] = key
                stack.callback(self._holders.pop, holder)
            yield

    async def _take(self, limit: anyio.Semaphore, stack: AsyncExitStack) -> None:
        if limit.value:
            await stack.enter_async_context(limit)
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._cut_slow_downloads, limit)
            await stack.enter_async_context(limit)
            group.cancel_scope.cancel()

    async def _cut_slow_downloads(self, limit: anyio.Semaphore) -> None:
        """Cut the slowest download above SLOW_S, one in CHECK_INTERVAL_S, until cancelled."""
        while True:
            await anyio.sleep(CHECK_INTERVAL_S)
            found = [
                (holder.waited_s(), holder)
                for holder, key in self._holders.items()
                if limit is self._total or isinstance(key, str)
            ]
            waited_s, slowest = max(found, key=itemgetter(0), default=(0.0, None))
            if slowest is not None and waited_s > (self._slow_s or SLOW_S):
                slowest.cut()

    def _client_limit(self, key: ClientKey, stack: AsyncExitStack) -> anyio.Semaphore:
        if key not in self._client_slots:
            self._client_slots[key] = anyio.Semaphore(self._per_client)
        self._n_requests[key] += 1
        stack.callback(self._release_client, key)
        return self._client_slots[key]

    def _release_client(self, key: ClientKey) -> None:
        self._n_requests[key] -= 1
        if not self._n_requests[key]:
            del self._n_requests[key], self._client_slots[key]
