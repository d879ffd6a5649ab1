"""The locks of write_locks.py where several machines share the database, which is PostgreSQL.

A process takes the lock of a store once for all of its writers, on a connection of its own. The
database releases the lock when that connection ends. A writer that finds at its end that the
connection has ended meanwhile fails, because a copy may have passed its object.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from deltahub.registry.storage.base import StoreUnavailable

_PAUSE_S = 0.1


class SharedWriteLocks:
    """Locks of stores in a database, by their marks."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, pool_size=1, max_overflow=1, isolation_level="AUTOCOMMIT")
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        # Mark -> writers of this process; of those that began on the connection of now.
        self._n_writers: dict[str, int] = {}

    @contextmanager
    def writing(self, mark: str) -> Iterator[None]:
        """A context in which this thread may write to the store of this mark.

        StoreUnavailable if the database does not answer, before or after the write.
        """
        try:
            connection = self._enter(mark)
        except SQLAlchemyError as error:
            self._drop(None)
            raise StoreUnavailable(f"the database cannot lock the store: {error}") from error
        try:
            yield
        except BaseException:
            try:
                self._leave(connection, mark)
            except SQLAlchemyError:
                self._drop(connection)
            raise
        try:
            self._leave(connection, mark)
        except SQLAlchemyError as error:
            self._drop(connection)
            raise StoreUnavailable(
                "the connection to the database ended while the store was written; try again"
            ) from error

    def wait_for_writers(self, mark: str, waits: Callable[[], None] = lambda: None) -> None:
        """Return when nobody writes to the store. waits() is called before each further try."""
        number = _number(mark)
        with self._engine.connect() as connection:
            while True:
                took = text(f"SELECT pg_try_advisory_lock({number})")
                if connection.scalar(took):
                    connection.execute(text(f"SELECT pg_advisory_unlock({number})"))
                    return
                waits()
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        self._engine.dispose()

    def _enter(self, mark: str) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection = self._engine.connect()
                self._n_writers = {}
            if not self._n_writers.get(mark):
                self._connection.execute(text(f"SELECT pg_advisory_lock_shared({_number(mark)})"))
            self._n_writers[mark] = self._n_writers.get(mark, 0) + 1
            return self._connection

    def _leave(self, connection: Connection, mark: str) -> None:
        with self._lock:
            if connection is not self._connection:
                raise SQLAlchemyError("the connection has ended")
            self._n_writers[mark] -= 1
            if self._n_writers[mark]:
                connection.execute(text("SELECT 1"))
            else:
                connection.execute(text(f"SELECT pg_advisory_unlock_shared({_number(mark)})"))

    def _drop(self, connection: Connection | None) -> None:
        """Forget a connection that has ended, and with it all locks."""
        with self._lock:
            if connection is None or connection is self._connection:
                ended, self._connection = self._connection, None
                if ended is not None:
                    ended.invalidate()
                    ended.close()


def _number(mark: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"store {mark}".encode(), digest_size=8).digest(), signed=True
    )
