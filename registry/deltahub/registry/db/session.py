"""Sessions on the metadata: reading ones that cannot write, writing ones that wait their turn."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NewType

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from deltahub.registry.errors import DataLost, InvalidRequest, StorageFull, Unavailable

# What only reads also takes a writing session, never the other way round.
ReadSession = NewType("ReadSession", Session)
WriteSession = NewType("WriteSession", ReadSession)

BUSY_TIMEOUT_S = 30

# Of PostgreSQL's advisory locks, which are numbers; "deltahub" in ASCII.
_WRITERS_LOCK = int.from_bytes(b"deltahub", "big")
# Of its error codes.
_DISK_FULL, _LOCK_NOT_AVAILABLE = "53100", "55P03"


class Database:
    """The two pools of connections of one process.

    Writers of one process queue at a pool of one connection (fair, and no busy waiting); between
    processes a lock of the database decides, waited for up to BUSY_TIMEOUT_S: SQLite's own, and on
    PostgreSQL one that every writing session takes, so that what a session has read holds until it
    commits there too.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._writing = threading.local()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        # Of a SQLite database; kept, since version() is asked for all the time.
        self._path: str | None = None
        if make_url(url).get_backend_name() == "sqlite":
            self._path = make_url(url).database
            self.write_engine = _sqlite_engine(url, is_read_only=False)
            self._read_engine = _sqlite_engine(url, is_read_only=True)
        else:
            self.write_engine = _postgresql_writer(url)
            self._read_engine = create_engine(
                url,
                pool_pre_ping=True,
                execution_options={
                    "isolation_level": "REPEATABLE READ",
                    "postgresql_readonly": True,
                },
            )

    @contextmanager
    def read(self) -> Iterator[ReadSession]:
        """One consistent view; whatever tries to write fails."""
        with (
            translated(),
            Session(self._read_engine, expire_on_commit=False, autoflush=False) as session,
        ):
            yield ReadSession(session)
            if session.new or session.dirty or session.deleted:
                raise AssertionError("a read session cannot write")

    @contextmanager
    def write(self) -> Iterator[WriteSession]:
        """One transaction: committed on leaving, rolled back on any error.

        StorageFull when the disk has no room, Unavailable when the lock could not be had.
        """
        # The second one would wait for the first for ever.
        if getattr(self._writing, "is_open", False):
            raise AssertionError("this thread has a write session open already")
        self._writing.is_open = True
        try:
            with translated(), Session(self.write_engine, expire_on_commit=False) as session:
                session.connection()  # take the lock now, so that what is read cannot go stale
                yield WriteSession(ReadSession(session))
                session.commit()
        finally:
            self._writing.is_open = False

    def version(self) -> int | None:
        """A number that is another one once anything was committed, by whatever process.

        None where only a query can tell. Takes hundredths of what a query does.
        """
        if not self._path:
            return None
        with self._watching:
            try:
                # A connection of its own: each counts what the others commit.
                if self._watcher is None:
                    self._watcher = sqlite3.connect(
                        self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                    )
                found: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                return None  # the query will say what is wrong
        return found

    def close(self) -> None:
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
        self.write_engine.dispose()
        self._read_engine.dispose()


def _sqlite_engine(url: str, *, is_read_only: bool) -> Engine:
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        pool_size=16 if is_read_only else 1,
        max_overflow=48 if is_read_only else 0,
        pool_timeout=BUSY_TIMEOUT_S * 2,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # None: the driver begins nothing by itself, see begin() below.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: an answered commit survives a loss of power (NORMAL does not fsync the WAL).
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if is_read_only:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")

    return engine


def _postgresql_writer(url: str) -> Engine:
    # READ COMMITTED: a snapshot of the whole session would be taken before the lock is had.
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=1,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S * 2,
        isolation_level="READ COMMITTED",
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_TIMEOUT_S}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")

    return engine


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the database's machine says into our errors; wrong SQL stays what it is."""
    try:
        yield
    except PoolTimeout as exc:
        raise Unavailable("too many requests wait for the database; try again") from exc
    except DBAPIError as exc:
        code = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF
        state = getattr(exc.orig, "sqlstate", None)  # what PostgreSQL has for a code
        if code == sqlite3.SQLITE_FULL or state == _DISK_FULL:
            raise StorageFull("the disk has no room for the database; free some space") from exc
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == _LOCK_NOT_AVAILABLE:
            raise Unavailable(
                f"the database stayed locked for {BUSY_TIMEOUT_S} s; try again"
            ) from exc
        # A server that cannot be connected to says so without any code.
        is_silent = isinstance(exc, OperationalError) and not code and state is None
        is_unread = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        if is_unread or is_silent or exc.connection_invalidated:
            raise Unavailable(f"the database cannot be reached: {exc.orig}") from exc
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DataLost(f"the database is damaged, restore it: {exc.orig}") from exc
        if isinstance(exc, DataError) and "NUL" in str(exc.orig):
            # SQLite takes them, PostgreSQL does not: nothing has such a name there.
            raise InvalidRequest("text with a NUL in it names nothing on this hub") from exc
        raise
