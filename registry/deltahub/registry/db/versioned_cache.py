"""What was read from the database, kept until anything is committed to it."""

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

from deltahub.registry.db.session import Database

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST: Final = 4096


class Memo(Generic[K, V]):
    """Answers that hold while Database.version() stays, and no longer than `age_s`.

    Safe to share between threads. What reading raises is not kept.
    """

    def __init__(self, db: Database, age_s: float = float("inf")) -> None:
        """age_s: of answers that time alone can change."""
        self._db = db
        self._age_s = age_s
        self._lock = Lock()
        self._version: int | None = None
        self._found: dict[K, tuple[float, V]] = {}

    def get(self, key: K, read: Callable[[], V]) -> V:
        """What `read` says, or has said of this key since the last commit."""
        version = self._db.version()  # before the query: what comes after it is news
        if version is None:
            return read()
        now = time.monotonic()
        with self._lock:
            if version != self._version:
                self._found.clear()
                self._version = version
            known = self._found.get(key)
            if known is not None and now - known[0] <= self._age_s:
                return known[1]
        value = read()
        with self._lock:
            if version == self._version:
                if len(self._found) >= _MOST:
                    self._found.clear()
                self._found[key] = (now, value)
        return value
