"""Whether an object is absent for certain: only if this hub's store answers, and lacks it.

A bucket that was deleted, emptied or replaced lacks every object, too, and the hub would take all
of its packs for lost. So the store's mark is read after the object was not found.
"""

import threading
from typing import Final

from deltahub.registry.storage.base import (
    MARK,
    ObjectNotFound,
    StoreError,
)
from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, BucketUnavailable, is_absent

_MOST_MARK: Final = 100


class Presence:
    """Knows the mark of the store that this process opened. Safe to share between threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._known: str | None = None

    def read_mark(self) -> str | None:
        """The mark; None without one. The first that is read is the mark of this store."""
        mark = self._read()
        with self._lock:
            if self._known is None:
                self._known = mark
        return mark

    def set_mark(self, mark: str) -> None:
        """The mark was written by this process."""
        with self._lock:
            self._known = mark

    def absence(self, key: str) -> StoreError:
        """The error for an object that was not found: ObjectNotFound only if this is certain.

        The mark is read each time and not remembered, because a bucket that is being emptied loses
        its mark first: the mark comes before all objects in the order of keys.
        """
        try:
            mark = self._read()
        except StoreError as exc:
            return exc
        with self._lock:
            known = self._known
        if known is None or mark == known:
            return ObjectNotFound(f"there is no object {key}")
        location = self._connection.location
        found = "its mark is gone" if mark is None else "it has the mark of another hub"
        return BucketUnavailable(
            f"{key}: {location} seems to be another bucket than at the start, or was emptied:"
            f" {found} ({location}{MARK})"
        )

    def error(self, key: str, exc: Exception) -> Exception:
        """The error of the store for an error of a request that reads an object."""
        return self.absence(key) if is_absent(exc) else self._connection.error(key, exc)

    def _read(self) -> str | None:
        connection = self._connection
        try:
            answer = connection.request("get_object", Key=connection.key(MARK))
            with answer["Body"] as body:
                return str(body.read(_MOST_MARK).decode(errors="replace").strip())
        except REQUEST_ERRORS as exc:
            if is_absent(exc):
                return None
            raise connection.error(MARK, exc) from exc
