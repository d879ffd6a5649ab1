"""What a failure of a database means: damage, no room, a lock, or no connection."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from deltahub.registry.db.checked_types import DAMAGED
from deltahub.registry.errors import (
    Cancelled,
    DatabaseDamaged,
    InvalidRequest,
    RegistryError,
    StorageFull,
    Unavailable,
    WriteConflict,
)

BUSY_TIMEOUT_S: Final = 30

# Error codes (SQLSTATE) of PostgreSQL.
_DISK_FULL, _LOCK_NOT_AVAILABLE = "53100", "55P03"
# unique_violation, serialization_failure, deadlock_detected
_CONFLICTS: Final = frozenset({"23505", "40001", "40P01"})
_DAMAGED_STATES: Final = frozenset({"XX001", "XX002"})  # data_corrupted, index_corrupted
_DAMAGED_CODES: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
)
# SQLite says no more than this if a file cannot be created, grown or written.
_VAGUE_CODES: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
)
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# More than SQLite writes at once when it opens a database: the index of the write-ahead log.
_PROBE_BYTES: Final = 64 << 10


@contextmanager
def database_errors_translated(folder: Path | None = None) -> Iterator[None]:
    """Raise registry errors for failures of the database or its disk. SQL errors stay unchanged.

    folder: the one that holds the SQLite file. It is asked why a file there cannot be written.
    """
    try:
        yield
    except (PoolTimeout, DBAPIError, sqlite3.Error) as exc:
        error = translation(exc, folder)
        if error is None:
            raise
        raise error from exc


@contextmanager
def conflicts_translated(*, is_alone: bool) -> Iterator[None]:
    """Raise WriteConflict if another writer was faster. is_alone: there is none, so it is a bug."""
    try:
        yield
    except DBAPIError as exc:
        if is_alone or _codes(exc)[1] not in _CONFLICTS:
            raise
        raise WriteConflict("other requests changed the same rows again and again") from exc


def translation(exc: BaseException, folder: Path | None = None) -> RegistryError | None:
    """The registry error for an error of SQLAlchemy or sqlite3; None for an error of the SQL."""
    if isinstance(exc, PoolTimeout):
        return Unavailable("too many requests wait for the database; try again")
    code, state = _codes(exc)
    if code == sqlite3.SQLITE_INTERRUPT:
        return Cancelled("the client disconnected, so the hub stopped this query")
    if is_damaged(exc):
        # The driver's message about such text has the text, which guests may not see.
        what = (
            "a row holds text that is no UTF-8" if code is None and state is None else _cause(exc)
        )
        return DatabaseDamaged(f"{DAMAGED} {what}")
    if code == sqlite3.SQLITE_FULL or state == _DISK_FULL:
        return _full()
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == _LOCK_NOT_AVAILABLE:
        return Unavailable(f"the database stayed locked for {BUSY_TIMEOUT_S} s; try again")
    if code in _VAGUE_CODES:
        reason = None if folder is None else write_failure(folder)
        if reason is not None and reason.errno in _NO_ROOM:
            return _full()
        if reason is not None:
            return Unavailable(f"the database cannot be written: {reason.strerror}")
        if code != sqlite3.SQLITE_READONLY:  # else a read session tried to write
            return Unavailable(f"the database cannot be reached: {_cause(exc)}")
    if isinstance(exc, DBAPIError) and not isinstance(exc.orig, sqlite3.Error):
        # A failed connection to PostgreSQL has no error code.
        if exc.connection_invalidated or (isinstance(exc, OperationalError) and state is None):
            return Unavailable(f"the database cannot be reached: {exc.orig}")
        if isinstance(exc, DataError) and "NUL" in str(exc.orig):
            # SQLite accepts NUL in text, PostgreSQL does not, so no name on PostgreSQL has one.
            return InvalidRequest("text with a NUL in it names nothing on this hub")
    return None


def is_damaged(exc: BaseException) -> bool:
    """Whether the error of SQLAlchemy or sqlite3 says that the database's file is damaged."""
    code, state = _codes(exc)
    # The driver finds text that is no UTF-8, and gives no code.
    return (
        code in _DAMAGED_CODES
        or state in _DAMAGED_STATES
        or (code is None and "Could not decode to UTF-8" in str(_cause(exc)))
    )


def _codes(exc: BaseException) -> tuple[int | None, str | None]:
    """(primary error code of SQLite, SQLSTATE of PostgreSQL), each None if it has none."""
    cause = _cause(exc)
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF, getattr(cause, "sqlstate", None)


def _cause(exc: BaseException) -> BaseException | None:
    """The driver's error."""
    return exc.orig if isinstance(exc, DBAPIError) else exc


def _full() -> StorageFull:
    return StorageFull("the disk has no room for the database; free some space")


def write_failure(folder: Path) -> OSError | None:
    """The error of writing a small file in the folder, if it fails. SQLite does not tell it."""
    try:
        with TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as exc:
        return exc
    return None
