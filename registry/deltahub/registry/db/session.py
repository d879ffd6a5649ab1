"""Database sessions: read sessions cannot write, write sessions run one after another."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NewType

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from deltahub.registry import cancellation
from deltahub.registry.db.checked_types import check_types
from deltahub.registry.db.failures import BUSY_TIMEOUT_S
from deltahub.registry.db.failures import database_errors_translated as database_errors_translated
from deltahub.registry.db.notices import Notices
from deltahub.registry.db.read_only import uri_to_read

# A function that only reads accepts a write session too; a writing function needs a WriteSession.
ReadSession = NewType("ReadSession", Session)
WriteSession = NewType("WriteSession", ReadSession)

# What this thread asks in each of its write sessions before it writes: see fenced().
_fence: ContextVar["Callable[[WriteSession], None] | None"] = ContextVar("fence", default=None)

# Key of a PostgreSQL advisory lock, an integer: "deltahub" in ASCII.
_WRITERS_LOCK = int.from_bytes(b"deltahub", "big")
# Key in Session.info.
_CHANGES_JOBS = "changes_jobs"
# Steps of SQLite's virtual machine, some 20 ms, between two looks at whether the caller has gone.
_STEPS_PER_CHECK = 2_000_000


class Database:
    """The connections of one process: a pool for reading and a pool for writing.

    The write pool has one connection, so writers of a process queue in order without busy waiting.
    Writers of different processes exclude each other by a lock, which they wait for up to
    BUSY_TIMEOUT_S seconds: SQLite's write lock, or an advisory lock on PostgreSQL. Rows that a
    write session has read therefore do not change until it commits.
    """

    def __init__(self, url: str, *, is_read_only: bool = False) -> None:
        """is_read_only: write() fails, and nothing is created or changed, not even by SQLite."""
        self.url = url
        self.is_read_only = is_read_only
        self._writing = threading.local()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        # Path of a SQLite database. Stored, because version() is called very often.
        self._path: str | None = None
        self._notices: Notices | None = None
        if make_url(url).get_backend_name() == "sqlite":
            self._path = make_url(url).database
            uri = uri_to_read(self.path) if is_read_only and self.path else None
            self.read_engine = _sqlite_engine(url, is_read_only=True, uri=uri)
            self.write_engine = _sqlite_engine(url, is_read_only=False)
        else:
            self.write_engine = _postgresql_writer(url)
            self._notices = Notices(url)
            self.read_engine = create_engine(
                url,
                pool_pre_ping=True,
                execution_options={
                    "isolation_level": "REPEATABLE READ",
                    "postgresql_readonly": True,
                },
            )

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self._path) if self._path else None

    @property
    def is_sqlite(self) -> bool:
        return self.read_engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[ReadSession]:
        """A read session: one consistent snapshot. Writing fails."""
        with (
            self.errors_translated(),
            Session(self.read_engine, expire_on_commit=False, autoflush=False) as session,
        ):
            yield ReadSession(session)
            if session.new or session.dirty or session.deleted:
                raise AssertionError("a read session cannot write")

    @contextmanager
    def write(self) -> Iterator[WriteSession]:
        """A write session: one transaction, committed on leaving, rolled back on any error.

        StorageFull if the disk is full; Unavailable if the write lock was not free in time;
        DataLost if the database is damaged.
        """
        if self.is_read_only:
            raise AssertionError("this database was opened for reading")
        # A second write session of this thread would wait for the first for ever.
        if getattr(self._writing, "is_open", False):
            raise AssertionError("this thread has a write session open already")
        self._writing.is_open = True
        try:
            with (
                self.errors_translated(),
                Session(self.write_engine, expire_on_commit=False) as session,
            ):
                session.connection()  # takes the write lock before the first read
                writing = WriteSession(ReadSession(session))
                if (check := _fence.get()) is not None:
                    check(writing)
                yield writing
                session.commit()
                if self._notices is not None and session.info.get(_CHANGES_JOBS):
                    self._notices.send()
        finally:
            self._writing.is_open = False

    def errors_translated(self) -> AbstractContextManager[None]:
        """Raise registry errors for failures of this database or its disk."""
        return database_errors_translated(self.path.parent if self.path else None)

    def version(self) -> int | None:
        """A number that changes when any process commits. None if the database has no such number.

        About 100 times as fast as a query.
        """
        if not self._path or self.is_read_only:
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

    def version_of_jobs(self) -> int | None:
        """Like version(), for changes of jobs. It may also change without one, now and then."""
        return self.version() if self._notices is None else self._notices.count()

    def close(self) -> None:
        if self._notices is not None:
            self._notices.close()
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
        self.write_engine.dispose()
        self.read_engine.dispose()


def note_job_change(session: WriteSession) -> None:
    """Tell other processes after the commit that a job has changed: Database.version_of_jobs()."""
    session.info[_CHANGES_JOBS] = True


@contextmanager
def fenced(check: Callable[[WriteSession], None]) -> Iterator[None]:
    """A context in which every write session of this thread begins with `check`.

    For work that a process may have lost to another one: check(session) locks the row that says
    whose work it is, and raises if it is another's. So nothing is written after that.
    """
    token = _fence.set(check)
    try:
        yield
    finally:
        _fence.reset(token)


def _sqlite_engine(url: str, *, is_read_only: bool, uri: str | None = None) -> Engine:
    """uri: how to open the file if nothing may be changed (db/read_only.py)."""
    connect_args: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    more = (
        {} if uri is None else {"creator": lambda: sqlite3.connect(uri, uri=True, **connect_args)}
    )
    engine = create_engine(
        url,
        connect_args=connect_args,
        **more,
        pool_size=16 if is_read_only else 1,
        max_overflow=48 if is_read_only else 0,
        pool_timeout=BUSY_TIMEOUT_S * 2,
    )

    check_types(engine)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # None: the driver begins no transactions; begin() below does.
        connection.isolation_level = None
        if uri is None:
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
