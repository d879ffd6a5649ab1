"""Moves a stopped hub's database from its SQLite file to an empty PostgreSQL database.

The target is filled in one transaction, and compared with the source in it. So a move that is cut
short at any moment leaves an empty target, or one that is whole: then the file may still have its
old name, and the next move compares the two databases and renames it. The source is only read.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from deltahub.registry.data_folder import (
    DATABASE_MOVE,
    MOVE_LOCK,
    RECOMPRESS_LOCK,
    SERVE_LOCK,
    WORKER_LOCK,
    DataFolderLock,
)
from deltahub.registry.db import schema
from deltahub.registry.db.opening.moved import name_after_move, sqlite_path
from deltahub.registry.db.session import Database
from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.database_move.binary_rows import Digest
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from deltahub.registry.maintenance.database_move.source import Source, opened_source
from deltahub.registry.maintenance.database_move.tables import CopiedTable, copied_tables
from deltahub.registry.maintenance.database_move.target import Target, opened_target
from deltahub.registry.maintenance.deletions import BACKUP_LOCK
from deltahub.registry.registry import schema_lock
from deltahub.registry.settings import Settings

# All that may write to the database for longer than a moment.
_LOCKS: Final = (SERVE_LOCK, WORKER_LOCK, RECOMPRESS_LOCK, MOVE_LOCK, BACKUP_LOCK)
# Rows between two reports of the progress.
_ROWS_PER_REPORT: Final = 20_000


class Progress(Protocol):
    """Told how far a move is: often, with a count, and at each step."""

    def __call__(self, text: str, *, is_step: bool = False) -> None: ...


@dataclass
class Moved:
    """What a move did. rows: table -> rows. old_file: the SQLite file's new path; None: it has not
    got one, because nothing was copied. was_there: an earlier move had copied all of it.
    """

    rows: dict[str, int] = field(default_factory=dict)
    old_file: Path | None = None
    was_there: bool = False

    @property
    def n_rows(self) -> int:
        return sum(self.rows.values())


def move(settings: Settings, url: str, progress: Progress) -> Moved:
    """Copy the database to the PostgreSQL database of the URL, prove it, and rename the old file.

    DatabaseMoveRefused if it cannot be moved there; DataFolderBusy or InUseByAnother while the hub
    or a command uses it; SchemaTooOld, SchemaTooNew; registry errors. The target is then empty, and
    the hub as it was.
    """
    path = _checked_source(settings, url)
    with (
        _hub_stopped(settings.data_dir.resolve()),
        opened_source(path, is_shared=False) as source,
        _filled_target(url) as target,
    ):
        moved = Moved(was_there=target.has_tables())
        if moved.was_there:
            _require_own_copy(source, target)
            moved.rows = _compare(source, target, progress)
            source.end_reading()
        else:
            source.require_sound()
            moved.rows = _copy(source, target, progress)
            source.end_reading()  # whatever may fail comes before the commit
            reached("database_move.before_commit")
            target.commit()
            reached("database_move.after_commit")
        moved.old_file = source.set_aside()
    return moved


def rehearse(settings: Settings, url: str, progress: Progress) -> Moved:
    """Check all that move() checks before it copies, and every row; copy nothing.

    The hub may serve meanwhile. The same errors as from move(), but for those of its locks.
    """
    path = _checked_source(settings, url)
    with opened_source(path, is_shared=True) as source, _filled_target(url) as target:
        if target.has_tables():
            raise _not_empty()
        target.make_tables()  # the transaction, and the tables with it, are rolled back
        source.require_sound()
        moved = Moved()
        for table in copied_tables():
            moved.rows[table.name] = sum(1 for _ in _reported(source, table, progress, "checking"))
        source.refuse_faults()
    return moved


def _checked_source(settings: Settings, url: str) -> Path:
    """The file to move; what can be refused before anything is opened."""
    if not _is_usable(url):
        raise DatabaseMoveRefused(
            "the target is no PostgreSQL database that can be used here: write"
            " postgresql+psycopg://USER@HOST/NAME"
        )
    path = sqlite_path(settings.effective_database_url)
    if path is None:
        raise DatabaseMoveRefused(
            "the hub's database is on PostgreSQL already (DELTAHUB_DATABASE_URL): only a SQLite"
            " file can be moved"
        )
    kept = name_after_move(path)
    if kept.exists():
        raise DatabaseMoveRefused(
            f"{kept} is there, from an earlier move: put it elsewhere, because this file will get"
            " its name"
        )
    with closing(Database(settings.effective_database_url, is_read_only=True)) as database:
        schema.require_head(database)
        found = schema.current(database)
        if found != schema.head():
            raise DatabaseMoveRefused(
                f"a newer release has added to the schema (version {found}; this release knows"
                f" {schema.head()}): move the database by that release"
            )
    return path


def _is_usable(url: str) -> bool:
    try:
        target = make_url(url)
    except ArgumentError:
        return False
    return (target.get_backend_name(), target.get_driver_name()) == ("postgresql", "psycopg")


@contextmanager
def _hub_stopped(data_dir: Path) -> Iterator[None]:
    """Keep out the hub, its worker, and all commands; DataFolderBusy if one is at work."""
    with ExitStack() as stack:
        for name in _LOCKS:
            stack.enter_context(DataFolderLock(data_dir, name, DATABASE_MOVE))
        # Commands that start from now on wait here, and then find that the file has moved.
        stack.enter_context(schema_lock(data_dir))
        yield


@contextmanager
def _filled_target(url: str) -> Iterator[Target]:
    with opened_target(url) as target:
        target.prepare()
        yield target


def _copy(source: Source, target: Target, progress: Progress) -> dict[str, int]:
    target.make_tables()
    sent: dict[str, Digest] = {}
    for table in copied_tables():
        sent[table.name] = target.copy(table, _reported(source, table, progress, "copying"))
        reached("database_move.after_table")
    source.refuse_faults()
    progress("making indexes", is_step=True)
    target.restore_schema()
    target.set_sequences(source.last_ids())
    for table in copied_tables():
        progress(f"comparing {table.name}")
        _require_equal(table, sent[table.name], target.digest(table))
    return {name: digest.n_rows for name, digest in sent.items()}


def _compare(source: Source, target: Target, progress: Progress) -> dict[str, int]:
    rows = {}
    for table in copied_tables():
        digest = Digest()
        for row in _reported(source, table, progress, "comparing"):
            digest.add(row)
        if digest != target.digest(table):
            raise DatabaseMoveRefused(
                "the target has this hub's tables from an earlier move, and one of the two was"
                f" changed since ({table.name}): decide which you keep. To keep the target, rename"
                " the SQLite file; to keep the file, name an empty database"
            )
        rows[table.name] = digest.n_rows
    return rows


def _require_own_copy(source: Source, target: Target) -> None:
    mark = source.store_mark()
    if mark is None or target.store_mark() != mark:
        raise _not_empty()


def _not_empty() -> DatabaseMoveRefused:
    return DatabaseMoveRefused("the target is not empty: name an empty database")


def _require_equal(table: CopiedTable, sent: Digest, found: Digest) -> None:
    if sent != found:
        raise DatabaseMoveRefused(
            f"the target has other rows of {table.name} than were sent: {found.n_rows} of"
            f" {sent.n_rows}; nothing was moved"
        )


def _reported(source: Source, table: CopiedTable, progress: Progress, verb: str) -> Iterator[bytes]:
    """The rows of a table, of whose number the progress is told."""
    progress(f"{verb} {table.name}")
    for number, row in enumerate(source.rows(table), 1):
        if number % _ROWS_PER_REPORT == 0:
            progress(f"{verb} {table.name}, {number:,} rows")
        yield row
