"""Waiting for one's turn, with an end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from deltahub.registry.errors import Busy


@asynccontextmanager
async def turn(
    patience_s: float, bounds: str, *limits: anyio.CapacityLimiter
) -> AsyncIterator[None]:
    """A place in each of the limits until the block ends; Busy if there is none in time.

    bounds: what the hub does at once, as the refusal says it.
    """
    async with AsyncExitStack() as stack:
        with anyio.move_on_after(patience_s) as patience:
            for limit in limits:
                await stack.enter_async_context(limit)
        if patience.cancelled_caught:
            raise Busy(
                f"no turn within {patience_s:g} s: this hub {bounds}; wait and send it again"
            )
        yield
