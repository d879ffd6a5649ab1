"""Database sessions: read sessions cannot write, write sessions run one after another."""

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

from deltahub.registry import cancellation
from deltahub.registry.errors import (
    Cancelled,
    DataLost,
    InvalidRequest,
    StorageFull,
    Unavailable,
)

# A function that only reads accepts a write session too; a writing function needs a WriteSession.
ReadSession = NewType("ReadSession", Session)
WriteSession = NewType("WriteSession", ReadSession)

BUSY_TIMEOUT_S = 30

# Key of a PostgreSQL advisory lock, an integer: "deltahub" in ASCII.
_WRITERS_LOCK = int.from_bytes(b"deltahub", "big")
# Error codes (SQLSTATE) of PostgreSQL.
_DISK_FULL, _LOCK_NOT_AVAILABLE = "53100", "55P03"
# Steps of SQLite's virtual machine, some 20 ms, between two looks at whether the caller has gone.
_STEPS_PER_CHECK = 2_000_000


class Database:
    """The connections of one process: a pool for reading and a pool for writing.

    The write pool has one connection, so writers of a process queue in order without busy waiting.
    Writers of different processes exclude each other by a lock, which they wait for up to
    BUSY_TIMEOUT_S seconds: SQLite's write lock, or an advisory lock on PostgreSQL. Rows that a
    write session has read therefore do not change until it commits.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._writing = threading.local()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        # Path of a SQLite database. Stored, because version() is called very often.
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
        """A read session: one consistent snapshot. Writing fails."""
        with (
            database_errors_translated(),
            Session(self._read_engine, expire_on_commit=False, autoflush=False) as session,
        ):
            yield ReadSession(session)
            if session.new or session.dirty or session.deleted:
                raise AssertionError("a read session cannot write")

    @contextmanager
    def write(self) -> Iterator[WriteSession]:
        """A write session: one transaction, committed on leaving, rolled back on any error.

        StorageFull if the disk is full; Unavailable if the write lock was not free in time.
        """
        # A second write session of this thread would wait for the first for ever.
        if getattr(self._writing, "is_open", False):
            raise AssertionError("this thread has a write session open already")
        self._writing.is_open = True
        try:
            with (
                database_errors_translated(),
                Session(self.write_engine, expire_on_commit=False) as session,
            ):
                session.connection()  # takes the write lock before the first read
                yield WriteSession(ReadSession(session))
                session.commit()
        finally:
            self._writing.is_open = False

    def version(self) -> int | None:
        """A number that changes when any process commits. None if the database has no such number.

        About 100 times as fast as a query.
        """
        if not self._path:
            return None
        with self._watching:
            try:
                # A separate connection: data_version counts only commits of other connections.
                if self._watcher is None:
                    self._watcher = sqlite3.connect(
                        self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                    )
                found: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                return None  # the caller's query reports the error
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
        # None: the driver begins no transactions; begin() below does.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a finished commit survives a loss of power (NORMAL does not fsync the WAL).
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if is_read_only:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if is_read_only:
            # One query may read millions of rows. It ends when the caller disconnects.
            cancelled = cancellation.watcher()
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.set_progress_handler(cancelled, _STEPS_PER_CHECK)
        connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")

    return engine


def _postgresql_writer(url: str) -> Engine:
    # READ COMMITTED, because REPEATABLE READ would take its snapshot before it has the lock.
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
def database_errors_translated() -> Iterator[None]:
    """Raise registry errors for failures of the database or its disk. SQL errors stay unchanged."""
    try:
        yield
    except PoolTimeout as exc:
        raise Unavailable("too many requests wait for the database; try again") from exc
    except DBAPIError as exc:
        code = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise Cancelled("the client disconnected, so the hub stopped this query") from exc
        state = getattr(exc.orig, "sqlstate", None)  # the error code of PostgreSQL
        if code == sqlite3.SQLITE_FULL or state == _DISK_FULL:
            raise StorageFull("the disk has no room for the database; free some space") from exc
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == _LOCK_NOT_AVAILABLE:
            raise Unavailable(
                f"the database stayed locked for {BUSY_TIMEOUT_S} s; try again"
            ) from exc
        # A failed connection to the server has no error code.
        has_no_code = isinstance(exc, OperationalError) and not code and state is None
        is_io_error = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        if is_io_error or has_no_code or exc.connection_invalidated:
            raise Unavailable(f"the database cannot be reached: {exc.orig}") from exc
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DataLost(f"the database is damaged, restore it: {exc.orig}") from exc
        if isinstance(exc, DataError) and "NUL" in str(exc.orig):
            # SQLite accepts NUL in text, PostgreSQL does not, so no name on PostgreSQL has one.
            raise InvalidRequest("text with a NUL in it names nothing on this hub") from exc
        raise
