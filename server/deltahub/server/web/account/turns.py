"""Turns of logins: passwords cost memory and processors, and a provider may answer slowly.

They have turns of their own, so that guessing or a slow provider delays nobody who is logged in.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from deltahub.registry.access.login.hashing import AT_ONCE
from deltahub.registry.errors import RegistryError
from deltahub.server.settings import ServerSettings
from deltahub.server.streaming.client_slots import FairQueue, client_key

if TYPE_CHECKING:
    from deltahub.server.openid.provider import Provider

T = TypeVar("T")

_PROVIDERS: Final = 8
_WAIT_S: Final = 20.0
# A refused login is answered after this time, whatever it was refused for: how long a check took
# would say which users there are.
REFUSED_AFTER_S: Final = 0.5


class Logins:
    """The queues of logins of one hub, and its provider of OpenID Connect, if it has one."""

    def __init__(self, settings: ServerSettings) -> None:
        self.provider: Provider | None = None
        if settings.oidc_issuer:
            # Its libraries take a while to load, which hubs without a provider need not spend.
            from deltahub.server.openid import provider

            self.provider = provider.Provider(settings)
        self._passwords = FairQueue(
            f"checks {AT_ONCE} passwords at once, and one of one address", AT_ONCE, 1, _WAIT_S
        )
        self._providers = FairQueue(
            f"asks the provider {_PROVIDERS} questions at once, and two for one address",
            _PROVIDERS,
            2,
            _WAIT_S,
        )
        # The queues bound these threads already.
        self._unlimited = anyio.CapacityLimiter(math.inf)

    async def check(self, request: Request, work: Callable[[], T]) -> T:
        """Check or set a password in a thread once there is a turn. Raises Busy."""
        async with self._passwords.slot(client_key(request, None)):
            return await anyio.to_thread.run_sync(work, limiter=self._unlimited)

    async def ask(self, request: Request, work: Callable[[], T]) -> T:
        """Ask the provider in a thread once there is a turn. Raises Busy."""
        async with self._providers.slot(client_key(request, None)):
            return await anyio.to_thread.run_sync(work, limiter=self._unlimited)

    async def check_evenly(self, request: Request, work: Callable[[], T]) -> T:
        """The same as check(). What it raises comes after an equal time for every reason."""
        start = time.monotonic()
        try:
            return await self.check(request, work)
        except RegistryError:
            await anyio.sleep(max(0.0, start + REFUSED_AFTER_S - time.monotonic()))
            raise


async def _logins_of(request: Request) -> Logins:
    logins: Logins = request.app.state.logins
    return logins


LoginsDep = Annotated[Logins, Depends(_logins_of)]
