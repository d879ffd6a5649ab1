"""Locks that say which processes write to a store now. The kernel releases those of dead processes.

A writer holds the lock of its store together with other writers. Who has to know that all writes
to a store have ended waits until nobody holds it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deltahub.registry.db.session import Database
from deltahub.registry.storage.local import translated
from deltahub.registry.stores.shared_write_locks import SharedWriteLocks

_PAUSE_S = 0.1


def write_locks_of(database: Database, data_dir: Path) -> "WriteLocks | SharedWriteLocks":
    """The locks of a hub: files of its data folder, or of a database that machines share."""
    return WriteLocks(data_dir) if database.is_sqlite else SharedWriteLocks(database.url)


class WriteLocks:
    """The lock files `store-MARK.lock` of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = str(data_dir)

    def close(self) -> None:
        """Each lock is a file that is open no longer than its writer."""

    @contextmanager
    def writing(self, mark: str) -> Iterator[None]:
        """A context in which this thread may write to the store of this mark."""
        descriptor = self._open(mark)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def wait_for_writers(self, mark: str, waits: Callable[[], None] = lambda: None) -> None:
        """Return when nobody writes to the store. waits() is called before each further try."""
        descriptor = self._open(mark)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waits()
                    time.sleep(_PAUSE_S)
                else:
                    return
        finally:
            os.close(descriptor)

    def _open(self, mark: str) -> int:
        path = f"{self._data_dir}/store-{mark}.lock"
        with translated(path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
