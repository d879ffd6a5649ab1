"""How fast a scrub reads, and when it stops: asked before every read of the store."""

import copy
import threading
import time

from deltahub.registry import cancellation
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.forwarding import ForwardingStore
from deltahub.registry.stores.deferring import DeferringStore

_MB = 1_000_000
# Longest sleep between two looks at whether the scrub should stop, in seconds.
_NAP_S = 0.25


class Stopped(Exception):
    """Somebody asked the scrub to stop. The object in hand counts as not read."""


class Pace:
    """mb_per_s: most MB (10^6 bytes) to read in a second; 0 for no limit. Its bytes are counted.

    Safe to share between threads, and stop() with a signal handler.
    """

    def __init__(self, mb_per_s: float = 0) -> None:
        self.n_bytes = 0
        self._bytes_per_s = mb_per_s * _MB
        self._free_at = time.monotonic()
        self._stop = threading.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    def take(self, n: int) -> None:
        """Wait until n bytes more may be read; Stopped."""
        cancellation.check()
        if self._stop.is_set():
            raise Stopped
        self.n_bytes += n
        if not self._bytes_per_s:
            return
        now = time.monotonic()
        # What was not used in the last second is not made up for.
        self._free_at = max(self._free_at, now - 1) + n / self._bytes_per_s
        while (left_s := self._free_at - time.monotonic()) > 0:
            if self._stop.wait(min(left_s, _NAP_S)):
                raise Stopped


class _PacedStore(ForwardingStore):
    """The same store. A read waits for its turn."""

    def __init__(self, inner: Store, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        self._pace.take(out.nbytes)
        self.inner.get_into(key, start, out)


def paced(reg: Registry, pace: Pace) -> Registry:
    """The registry, but what is read of its store is read at this pace.

    The one place where a scrub gets its store: it must be the store itself, not copies of it on
    this machine.
    """
    twin = copy.copy(reg)
    twin.store = DeferringStore(_PacedStore(reg.store.inner, pace), reg.db)
    return twin
