"""Whether this server should get requests: for load balancers, which ask every second or so."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread

from deltahub.registry.jobs.health import Problem

log = logging.getLogger(__name__)

# An answer holds for so many seconds, so that questions cost nothing however many there are.
_VALID_S: Final = 1.0
# Balancers give up after some seconds; a database that needs longer does not answer.
_PATIENCE_S: Final = 2.0


@dataclass(frozen=True)
class Obstacle:
    """A part of the hub for which this server should get no requests, and why."""

    part: str
    message: str


_STOPPING: Final = Obstacle("server", "the hub is stopping; send requests to another server")
_SILENT: Final = Obstacle("database", f"the database has not answered for {_PATIENCE_S:g} s")


class Readiness:
    """Knows what keeps this server from serving. For the event loop's thread only.

    A hub without a worker is ready: uploads, downloads and commits need none.
    """

    def __init__(self, ask: Callable[[], Sequence[Problem]]) -> None:
        """ask: finds the parts that do not work; called in a thread, and may hang."""
        self._ask = ask
        self.is_stopping = False
        # Not one of the threads of requests, which may all be waiting.
        self._thread = anyio.CapacityLimiter(1)
        self._question: asyncio.Task[None] | None = None
        self._found: list[Obstacle] = []
        self._answered_at = 0.0

    async def obstacles(self) -> list[Obstacle]:
        """Return what keeps this server from serving; nothing if it is ready."""
        if self.is_stopping:
            return [_STOPPING]
        # One question is asked at a time, also while the database hangs.
        if self._question is None and time.monotonic() > self._answered_at + _VALID_S:
            self._question = asyncio.create_task(self._find())
        if self._question is not None:
            await asyncio.wait({self._question}, timeout=_PATIENCE_S)
        return self._found if self._question is None else [_SILENT]

    async def _find(self) -> None:
        try:
            problems = await anyio.to_thread.run_sync(self._ask, limiter=self._thread)
            self._found = [Obstacle(each.part, each.message) for each in problems]
        except Exception:
            log.exception("whether the hub is ready cannot be found out")
            self._found = [Obstacle("server", "the hub made a mistake; its log has the details")]
        finally:
            self._answered_at = time.monotonic()
            self._question = None
