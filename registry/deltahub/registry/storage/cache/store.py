"""A Store whose packs are kept on the local disk once they were read."""

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Lock
from typing import Final

from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    Store,
    StoreError,
)
from deltahub.registry.storage.cache.entry import SEGMENT_BYTES, DamagedEntry, Entry
from deltahub.registry.storage.cache.flights import Flights
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.forwarding import HoldingStore
from deltahub.registry.storage.keys import PACKS, check_key

log = logging.getLogger(__name__)

# The most bytes of one request to the store, and so of one buffer.
FETCH_BYTES: Final = 8 << 20
# Requests that run ahead of the readers of this process, and those that wait for their turn.
# More hints are ignored: their readers fetch for themselves.
AHEAD: Final = 4
_WAITING: Final = 64
# Seconds for which hints are ignored after the cache had no room: what they fetch would be lost.
_FULL_S: Final = 10.0
_IDLE_BUFFERS: Final = AHEAD


class CachedStore(HoldingStore):
    """The store `inner`; get_cached_into() reads packs from `cache`. Processes may share both.

    Packs alone are cached, because a pack's key never gets other bytes. All other methods go to
    the store, so that get_into() always says what the store has. A put and a delete drop the copy,
    after the store has done them: a fetch that began before writes into the dropped file.
    """

    def __init__(self, inner: Store, cache: ObjectCache) -> None:
        super().__init__(inner)
        self._cache = cache
        self._flights = Flights()
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="prefetch")
        self._turns = BoundedSemaphore(AHEAD + _WAITING)
        self._buffers = _Buffers()
        self._no_hints_until = 0.0

    def get_cached_into(self, key: str, start: int, out: memoryview) -> None:
        view = out.cast("B")
        if not self._is_cached(key) or not view:
            self.inner.get_into(key, start, view)
            return
        for _ in range(2):  # a damaged copy is replaced once
            entry = self._cache.open_or_create(key, lambda: self.inner.size(key))
            if entry is None:
                self._cache.reads.add(view.nbytes, is_hit=False)
                break
            with entry:
                if entry.size < start + view.nbytes:
                    break  # the store says which error this is
                try:
                    self._fill(entry, start, view)
                    return
                except DamagedEntry as exc:
                    self._cache.drop_damaged(key, exc)
                except ObjectNotFound:
                    break  # what is kept of it may be all that is left
                except ShortObject:
                    self._cache.drop(key)
                    break  # replaced since the copy was begun
        self.inner.get_into(key, start, view)

    def prefetch(self, key: str, start: int, end: int) -> None:
        if not self._is_cached(key) or time.monotonic() < self._no_hints_until:
            return
        for low in range(start, end, FETCH_BYTES):
            if not self._turns.acquire(blocking=False):
                return
            try:
                future = self._pool.submit(self._fetch_ahead, key, low, min(end, low + FETCH_BYTES))
            except RuntimeError:  # the store is being closed
                self._turns.release()
                return
            future.add_done_callback(lambda _: self._turns.release())

    def forget(self, key: str) -> None:
        self._cache.drop(key)
        self.inner.forget(key)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._cache.close_idle()
        self.inner.close()

    def _is_cached(self, key: str) -> bool:
        return check_key(key).startswith(PACKS) and self._cache.limit_bytes > 0

    def _drop(self, keys: Collection[str]) -> None:
        for key in keys:
            if key.startswith(PACKS):
                self._cache.drop(key)

    def _fill(self, entry: Entry, start: int, out: memoryview) -> None:
        """Fill `out` from the entry, and fetch what it lacks."""
        end = start + out.nbytes
        wanted = list(_requests(entry.read_into(start, out)))
        self._cache.reads.add(out.nbytes, is_hit=not wanted)
        while wanted:
            low, high = wanted.pop(0)
            at = max(low, start)
            part = out[at - start : min(high, end) - start]
            if not self._fetch(entry, low, high, at, part):
                wanted[:0] = _requests(entry.read_into(at, part))

    def _fetch(
        self, entry: Entry, low: int, high: int, start: int = 0, out: memoryview | None = None
    ) -> bool:
        """Fetch [low, high) unless another thread does, and fill `out` from byte `start`.

        False if nothing was fetched here, because another thread has fetched a part of it.
        """
        flight = self._flights.begin(entry.key, low, high)
        if isinstance(flight, Future):
            flight.result()
            return False
        with flight, self._buffers.lent(high - low) as data:
            if entry.missing(low, high) != [(low, high)]:
                return False
            self.inner.get_into(entry.key, low, data)
            if out is not None:
                out[:] = data[start - low : start - low + out.nbytes]
            if not self._cache.write(entry, low, data):
                self._no_hints_until = time.monotonic() + _FULL_S
            return True

    def _fetch_ahead(self, key: str, start: int, end: int) -> None:
        try:
            entry = self._cache.open_or_create(key, lambda: self.inner.size(key))
            if entry is None:
                return
            with entry:
                # A second look after threads that have fetched a part of it meanwhile, no third.
                for _ in range(2):
                    missing = entry.missing(start, max(start, min(end, entry.size)))
                    if all([self._fetch(entry, *each) for each in _requests(missing)]):
                        return
        except DamagedEntry as exc:
            self._cache.drop_damaged(key, exc)
        except StoreError as exc:
            log.debug("%s was not fetched ahead: %s", key, exc)  # its reader gets the error
        except Exception:
            log.exception("%s was not fetched ahead", key)


class _Buffers:
    """Lends buffers. Fresh memory would cost a tenth of the time of a request."""

    def __init__(self) -> None:
        self._idle: list[memoryview] = []
        self._lock = Lock()

    def lent(self, size: int) -> "_Lent":
        return _Lent(self, size)

    def take(self) -> memoryview:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return memoryview(bytearray(FETCH_BYTES + SEGMENT_BYTES))

    def give(self, buffer: memoryview) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_BUFFERS:
                self._idle.append(buffer)


class _Lent:
    def __init__(self, buffers: _Buffers, size: int) -> None:
        self._buffers = buffers
        self._size = size

    def __enter__(self) -> memoryview:
        self._buffer = self._buffers.take()
        return self._buffer[: self._size]

    def __exit__(self, *exc: object) -> None:
        self._buffers.give(self._buffer)


def _requests(missing: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, end in missing:
        for low in range(start, end, FETCH_BYTES):
            yield low, min(end, low + FETCH_BYTES)
