"""A fair queue: a limited number of slots, with a limit for each user or address."""

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import anyio
from starlette.requests import Request

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import Busy
from deltahub.server.connections.addresses import counted_address

# The id of a user, or the address of a guest, a client without a token.
ClientKey: TypeAlias = int | str


def client_key(request: Request, caller: Caller | None) -> ClientKey:
    """Return the key that a request's slots are counted for: the user's id or guest's address."""
    if caller is not None:
        return caller.user_id
    # Behind a trusted proxy this is the address in X-Forwarded-For.
    return counted_address(request.client.host if request.client is not None else "")


# When others wait for a slot, a download is cut whose client takes longer than this for a chunk.
SLOW_S = 60.0
# Time between searches for such a download, while somebody waits.
CHECK_INTERVAL_S = 1.0
# The last quarter of all slots is for clients that have none.
_FIRST_SHARE: Final = 4


class SlotHolder(Protocol):
    """The holder of a slot, which can be made to give it up."""

    def waited_s(self) -> float:
        """Seconds since the hub began to wait for the client; 0 while it does not."""

    def cut(self) -> None:
        """Make the holder give up its slot."""


@dataclass(eq=False)
class _Claim:
    """A request that has a slot or waits for one."""

    key: ClientKey
    holder: SlotHolder | None
    number: int
    granted: anyio.Event = field(default_factory=anyio.Event)
    # The claim that was cut for this one; a claim is cut for one other at most.
    cut: "_Claim | None" = None
    is_cut: bool = False


class FairQueue:
    """`total` slots: at most `per_client` for one user or address, `guests` for all guests.

    Of those who wait, the client that has the fewest slots comes first, then the request that came
    first. A client with a slot takes no other one from the last quarter of all slots, or of those
    for guests, so that a client with none seldom waits. A request waits up to timeout_s seconds.
    bounds: the limits in words, for the refusal. n_refused, n_cut: requests that waited in vain,
    and holders that were cut, since the server started.

    While a client waits, a holder that has waited longer than slow_s for its own client is cut: the
    slowest one of the client with the most slots.
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
        """slow_s: by default SLOW_S."""
        self._bounds = bounds
        self._total = total
        self._per_client = per_client
        self._timeout_s = timeout_s
        self._guests = total if guests is None else guests
        self._slow_s = slow_s
        self._n_claims = 0
        self.n_refused = 0
        self.n_cut = 0
        # Entries are kept only for clients that have or want a slot: addresses are unlimited.
        self._n_held: Counter[ClientKey] = Counter()
        self._n_guests = 0
        self._held: dict[_Claim, None] = {}
        self._waiting: dict[ClientKey, deque[_Claim]] = {}

    @property
    def total(self) -> int:
        return self._total

    @property
    def n_taken(self) -> int:
        return len(self._held)

    @property
    def n_waiting(self) -> int:
        return sum(len(claims) for claims in list(self._waiting.values()))

    @property
    def n_asked(self) -> int:
        """How many requests have asked for a slot, whether they got one or not."""
        return self._n_claims

    @asynccontextmanager
    async def slot(
        self, key: ClientKey, holder: SlotHolder | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[None]:
        """Hold a slot until the block ends. Raises Busy if none is free in time.

        holder: is cut if it is slow and others wait; cutting it must end the block. timeout_s: None
        for that of the queue.
        """
        self._n_claims += 1
        claim = _Claim(key, holder, self._n_claims)
        try:
            if self._is_free_for(key):
                self._grant(claim)
            else:
                await self._wait(claim, self._timeout_s if timeout_s is None else timeout_s)
            yield
        finally:
            self._release(claim)

    async def _wait(self, claim: _Claim, timeout_s: float) -> None:
        self._waiting.setdefault(claim.key, deque()).append(claim)
        with anyio.move_on_after(timeout_s):
            while not claim.granted.is_set():
                self._cut_slow(claim)
                with anyio.move_on_after(CHECK_INTERVAL_S):
                    await claim.granted.wait()
        if not claim.granted.is_set():
            self.n_refused += 1
            raise Busy(
                f"no turn within {timeout_s:g} s: this hub {self._bounds}; wait and send it again"
            )

    def _is_free_for(self, key: ClientKey) -> bool:
        n_held = self._n_held[key]
        if n_held >= self._per_client or _is_full(len(self._held), self._total, n_held):
            return False
        return not (isinstance(key, str) and _is_full(self._n_guests, self._guests, n_held))

    def _grant(self, claim: _Claim) -> None:
        self._held[claim] = None
        self._n_held[claim.key] += 1
        self._n_guests += isinstance(claim.key, str)
        claim.granted.set()

    def _release(self, claim: _Claim) -> None:
        if claim in self._held:
            del self._held[claim]
            self._n_held[claim.key] -= 1
            self._n_guests -= isinstance(claim.key, str)
            if not self._n_held[claim.key]:
                del self._n_held[claim.key]
        elif claim.key in self._waiting:
            self._waiting[claim.key].remove(claim)
            self._forget_if_done(claim.key)
        self._grant_all()

    def _grant_all(self) -> None:
        """Give all free slots to requests that wait and may have them."""
        while len(self._held) < self._total:
            free = [key for key in self._waiting if self._is_free_for(key)]
            if not free:
                return
            key = min(free, key=lambda key: (self._n_held[key], self._waiting[key][0].number))
            self._grant(self._waiting[key].popleft())
            self._forget_if_done(key)

    def _forget_if_done(self, key: ClientKey) -> None:
        if not self._waiting[key]:
            del self._waiting[key]

    def _cut_slow(self, claim: _Claim) -> None:
        """Cut a slow holder whose slot `claim` could have, unless one was cut for it already."""
        if claim.cut in self._held:
            return  # it will end soon
        slow_s = SLOW_S if self._slow_s is None else self._slow_s
        n_own = self._n_held[claim.key]
        is_guest = isinstance(claim.key, str)
        only_own = n_own >= self._per_client
        if only_own and not is_guest:
            return  # one user's requests would cut each other, and start again
        only_guests = is_guest and _is_full(self._n_guests, self._guests, n_own)
        found = []
        for held in self._held:
            if held.holder is None or held.is_cut:
                continue
            is_own = held.key == claim.key
            is_fair = is_own or self._n_held[held.key] >= n_own
            helps = is_own if only_own else isinstance(held.key, str) or not only_guests
            waited_s = held.holder.waited_s() if is_fair and helps else 0.0
            if waited_s > slow_s:
                found.append((self._n_held[held.key], waited_s, held))
        if found:
            claim.cut = max(found, key=lambda one: one[:2])[2]
            claim.cut.is_cut = True
            self.n_cut += 1
            assert claim.cut.holder is not None
            claim.cut.holder.cut()


def _is_full(n_taken: int, total: int, n_own: int) -> bool:
    """Whether a client that has n_own slots gets none of `total` of which n_taken are taken."""
    return n_taken >= (total - total // _FIRST_SHARE if n_own else total)
