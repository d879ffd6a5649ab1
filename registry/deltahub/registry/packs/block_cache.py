"""A least-recently-used cache bounded in bytes, shared between threads."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Keeps the most recently used values, up to `limit_bytes` as the callers count them.

    A value larger than the limit is not kept. n_hits, n_misses: calls of get() since it was made.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self.n_hits = 0
        self.n_misses = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        return self._used

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                self.n_misses += 1
                return None
            self.n_hits += 1
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        if size_bytes > self._limit:
            return
        with self._lock:
            old = self._values.pop(key, None)
            if old is not None:
                self._used -= old[1]
            self._values[key] = (value, size_bytes)
            self._used += size_bytes
            while self._used > self._limit:
                _, (_, freed) = self._values.popitem(last=False)
                self._used -= freed

    def forget(self, key: K) -> None:
        with self._lock:
            old = self._values.pop(key, None)
            if old is not None:
                self._used -= old[1]
