"""The job engine's file `jobs.sqlite`: checked at start, and set aside when it is damaged.

It holds no more than which steps of unfinished jobs are done. Without it these jobs start from the
beginning, so a damaged file costs time alone.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError

from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import database_errors_translated
from deltahub.registry.errors import DataLost, JobFailed, StorageFull, Unavailable

log = logging.getLogger(__name__)

DATABASE_NAME: Final = "jobs.sqlite"
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TIMEOUT_S: Final = 30


class EngineFileDamaged(Exception):
    """The job engine's file cannot be used. Jobs start over without it."""

    code = JobFailed.code


def prepare(path: Path) -> None:
    """Check the file, set it aside if it is damaged, and use a write-ahead log.

    Raises sqlite3.Error if the file cannot be read or written for another reason.
    """
    fault = _fault(path) if path.exists() else None
    if fault is not None:
        set_aside(path, fault)
    # The mode is stored in the file. By default DBOS uses a rollback journal, three times slower.
    connection = sqlite3.connect(path, timeout=_TIMEOUT_S)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def set_aside(path: Path, reason: object) -> None:
    """Rename the file, with the date, so that the next start makes a new one."""
    stamp = f"{utc_now():%Y%m%dT%H%M%S.%fZ}"
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    # The file itself last: SQLite would replay an old write-ahead log into a new file.
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    log.error(
        "the job engine's file is damaged (%s): it is now %s, and unfinished jobs start from the"
        " beginning; delete it when nobody wants to examine it",
        reason, kept,
    )  # fmt: skip


@contextmanager
def engine_errors() -> Iterator[None]:
    """A context in which errors of the engine's records are translated.

    They are in the file, or in the database of a hub on PostgreSQL.

    Raises StorageFull and Unavailable for errors that pass, else EngineFileDamaged.
    """
    try:
        with database_errors_translated():
            yield
    except (StorageFull, Unavailable) as error:
        place = f"in {DATABASE_NAME} or in PostgreSQL"
        raise type(error)(f"the job engine's records, {place}: {error}") from error
    except (DataLost, DBAPIError) as error:
        # Also for example a missing table: DBOS made all of them when it started.
        raise EngineFileDamaged(f"{DATABASE_NAME}: {error}") from error


def _fault(path: Path) -> str | None:
    connection = sqlite3.connect(path, timeout=_TIMEOUT_S)
    try:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in _DAMAGE:
            return str(error)
        raise
    finally:
        connection.close()
    return None if found == ["ok"] else "; ".join(found)
