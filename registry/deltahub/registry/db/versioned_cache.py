"""A cache of query results, valid until the next commit to the database."""

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

from deltahub.registry.db.session import Database

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_VALUES: Final = 4096


class Memo(Generic[K, V]):
    """Caches values until Database.version() changes, for at most `age_s` seconds.

    Safe to share between threads. Errors are not cached. Clears itself at _MAX_VALUES values.
    """

    def __init__(self, db: Database, age_s: float = float("inf")) -> None:
        """age_s: for values that may change without a commit, because time passes."""
        self._db = db
        self._age_s = age_s
        self._lock = Lock()
        self._version: int | None = None
        self._values: dict[K, tuple[float, V]] = {}

    def get(self, key: K, read: Callable[[], V]) -> V:
        """The cached value of this key; calls `read` if there is none since the last commit."""
        version = self._db.version()  # before read(): a later commit must invalidate the value
        if version is None:
            return read()
        now = time.monotonic()
        with self._lock:
            if version != self._version:
                self._values.clear()
                self._version = version
            known = self._values.get(key)
            if known is not None and now - known[0] <= self._age_s:
                return known[1]
        value = read()
        with self._lock:
            if version == self._version:
                if len(self._values) >= _MAX_VALUES:
                    self._values.clear()
                self._values[key] = (now, value)
        return value
