"""Database sessions: read sessions cannot write, and write sessions wait where they must.

With SQLite, write sessions run one after another. With PostgreSQL there are two kinds:

- write(): alone. What the session has read does not change until it commits.
- write_beside(keys): beside other sessions of this kind whose keys differ. It is for writers that
  only add, or that change rows which one of the keys or a row lock protects. So nothing that such a
  session has read goes away before it commits; whatever removes something uses write().
"""

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NewType

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from deltahub.registry import cancellation
from deltahub.registry.db.checked_types import check_types
from deltahub.registry.db.failures import BUSY_TIMEOUT_S, conflicts_translated
from deltahub.registry.db.failures import database_errors_translated as database_errors_translated
from deltahub.registry.db.read_only import uri_to_read
from deltahub.registry.db.shared.notices import Notices

# A function that only reads accepts a write session too; a writing function needs a WriteSession.
ReadSession = NewType("ReadSession", Session)
WriteSession = NewType("WriteSession", ReadSession)

# What this thread asks in each of its write sessions before it writes: see fenced().
_fence: ContextVar["Callable[[WriteSession], None] | None"] = ContextVar("fence", default=None)

# Key of a PostgreSQL advisory lock, an integer: "deltahub" in ASCII.
_WRITERS_LOCK = int.from_bytes(b"deltahub", "big")
# Longest pause between two statements of a write session, in seconds.
_IDLE_S = 60
# Key in Session.info.
_CHANGES_JOBS = "changes_jobs"
# Steps of SQLite's virtual machine, some 20 ms, between two looks at whether the caller has gone.
_STEPS_PER_CHECK = 2_000_000


class Database:
    """The connections of one process: a pool for reading and a pool for writing.

    Writers wait for each other up to BUSY_TIMEOUT_S seconds: for SQLite's write lock, or for
    advisory locks on PostgreSQL. With SQLite the write pool has one connection, so that the writers
    of a process queue in order without busy waiting.
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
        """A write session alone: one transaction, committed on leaving, rolled back on any error.

        StorageFull if the disk is full; Unavailable if the write lock was not free in time;
        DataLost if the database is damaged.
        """
        with self._write(None) as session:
            yield session

    @contextmanager
    def write_beside(self, *keys: str) -> Iterator[WriteSession]:
        """The same beside other writers: see the module. With SQLite it is write().

        keys: names of what the session changes, such as repository_key(); a session with an equal
        key waits. WriteConflict if another writer has inserted the same row first, or waits for
        this one: the caller begins again, by the decorator `retried`.
        """
        with self._write(keys) as session:
            yield session

    @contextmanager
    def _write(self, keys: Collection[str] | None) -> Iterator[WriteSession]:
        """keys: None for a session alone."""
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
                session.connection()  # with SQLite, takes the write lock before the first read
                is_alone = self.is_sqlite or keys is None
                if not self.is_sqlite:
                    with conflicts_translated(is_alone=is_alone):
                        session.execute(text(_take_locks(keys)))
                writing = WriteSession(ReadSession(session))
                if (check := _fence.get()) is not None:
                    check(writing)
                with conflicts_translated(is_alone=is_alone):
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
    # READ COMMITTED, because REPEATABLE READ would take its snapshot before it has the locks.
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=12,
        pool_timeout=BUSY_TIMEOUT_S * 2,
        isolation_level="READ COMMITTED",
    )


def repository_key(repository_id: int) -> str:
    """Of writers to the refs, revisions, trees, facts and usage of a repository."""
    return f"repository {repository_id}"


def also_lock(session: WriteSession, key: str) -> None:
    """Take the lock of a further key. All writers take it after those of write_beside()."""
    if session.get_bind().dialect.name != "sqlite":
        session.execute(text(f"SELECT pg_advisory_xact_lock({_lock_number(key)})"))


# Of writers that change the bases of stored tensors: together two could close a circle.
BASES_KEY: Final = "bases"


def _take_locks(keys: Iterable[str] | None) -> str:
    """SQL that takes the lock of all writers alone (None), or beside others and those of the keys.

    All writers take the locks of keys in one order. Functions in a list of SELECT are called in the
    order of the list.
    """
    calls = [
        f"set_config('lock_timeout', '{BUSY_TIMEOUT_S}s', true)",
        # A process that stands still must not block all others: the server ends its session.
        f"set_config('idle_in_transaction_session_timeout', '{_IDLE_S}s', true)",
    ]
    if keys is None:
        calls.append(f"pg_advisory_xact_lock({_WRITERS_LOCK})")
    else:
        calls.append(f"pg_advisory_xact_lock_shared({_WRITERS_LOCK})")
        calls += [f"pg_advisory_xact_lock({number})" for number in sorted(map(_lock_number, keys))]
    return f"SELECT {', '.join(calls)}"


def _lock_number(key: str) -> int:
    """A number of 64 bits. Writers whose keys have equal numbers wait for no reason."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), signed=True)
