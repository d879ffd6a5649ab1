"""The SQLite file of a hub, as the source of a move."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deltahub.registry.db.failures import database_errors_translated
from deltahub.registry.db.opening.moved import name_after_move
from deltahub.registry.errors import DatabaseDamaged, Unavailable
from deltahub.registry.maintenance.database_move.binary_rows import RowEncoder, Unfit
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from deltahub.registry.maintenance.database_move.tables import CopiedTable, quoted
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated

# Faults that are named before a move gives up.
_MAX_FAULTS: Final = 20
# Another command that opens the database for a moment gets done within this time.
_BUSY_S: Final = 5.0


class InUseByAnother(Exception):
    """Another process has the database open."""


class Source:
    """The open file. faults: sentences about rows that PostgreSQL cannot hold."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self.faults: list[str] = []

    def require_sound(self) -> None:
        """DatabaseDamaged, or DatabaseMoveRefused if rows refer to rows that are not there."""
        damage = [str(line) for (line,) in self._connection.execute("PRAGMA quick_check(3)")]
        if damage != ["ok"]:
            raise DatabaseDamaged(
                f"{self._path} is damaged ({'; '.join(damage)}): `deltahub fsck` says where"
            )
        dangling = self._connection.execute("PRAGMA foreign_key_check")
        for table, row_id, target, _ in dangling.fetchmany(_MAX_FAULTS):
            self.faults.append(f"{table}, row {row_id}: refers to a row of {target} that is gone")
        self.refuse_faults()

    def rows(self, table: CopiedTable) -> Iterator[bytes]:
        """The rows of a table in PostgreSQL's binary format. Faulty ones are noted and left out;
        DatabaseMoveRefused when there are many.
        """
        encoder = RowEncoder(table.columns)
        for row in self._values(table):
            try:
                yield encoder.encode(row[1:])
            except Unfit:
                column, reason = encoder.fault(row[1:])
                self._note(f"{table.name}, row {row[0]}, {column}: {reason}")

    def _values(self, table: CopiedTable) -> Iterator[tuple[int, ...]]:
        """Rows in order, each behind its number. The driver stops at text that is no UTF-8, and
        reading goes on behind that row.
        """
        last = -(1 << 63)
        while True:
            rows = self._connection.execute(
                f"SELECT rowid, {', '.join(table.source)} FROM {quoted(table.name)}"
                " WHERE rowid > ? ORDER BY rowid",
                (last,),
            )
            try:
                for row in rows:
                    last = row[0]
                    yield row
                return
            except sqlite3.OperationalError as exc:
                # Its message goes on with the text.
                found = re.match(r"Could not decode to UTF-8 column '(\w+)'", str(exc))
                if found is None:
                    raise
            (last,) = self._connection.execute(
                f"SELECT rowid FROM {quoted(table.name)} WHERE rowid > ? ORDER BY rowid LIMIT 1",
                (last,),
            ).fetchone()
            self._note(f"{table.name}, row {last}, {found[1]}: text that is no UTF-8")

    def _note(self, fault: str) -> None:
        self.faults.append(fault)
        if len(self.faults) >= _MAX_FAULTS:
            self.refuse_faults()

    def refuse_faults(self) -> None:
        """DatabaseMoveRefused if any were found, with all of them."""
        if self.faults:
            raise DatabaseMoveRefused(
                "the database has rows that PostgreSQL cannot hold, and nothing was moved: "
                + "; ".join(self.faults)
            )

    def last_ids(self) -> dict[str, int]:
        """Table -> the highest id that it ever gave, of the tables that give none again."""
        rows = self._connection.execute("SELECT name, seq FROM sqlite_sequence")
        return {str(name): int(seq) for name, seq in rows}

    def store_mark(self) -> str | None:
        """The mark of the hub's store, a random number that no other hub has."""
        query = "SELECT mark FROM object_stores WHERE state = 'current'"
        row = self._connection.execute(query).fetchone()
        return None if row is None else str(row[0])

    def end_reading(self) -> None:
        """Bring all commits into the one file, which will get another name. Nobody else can open it
        before it is closed. Unavailable if that fails.
        """
        self._connection.execute("ROLLBACK")
        (mode,) = self._connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        if mode != "delete":
            raise Unavailable(f"the write-ahead log of {self._path} cannot be ended: it is {mode}")

    def set_aside(self) -> Path:
        """Rename the file, so that no hub starts on it; the new path."""
        new = name_after_move(self._path)
        with translated(str(self._path)):
            self._path.rename(new)
            # The index of the log, which a killed hub has left.
            self._path.with_name(f"{self._path.name}-shm").unlink(missing_ok=True)
            Disk().fsync_dir(new.parent)
        return new


@contextmanager
def opened_source(path: Path, *, is_shared: bool) -> Iterator[Source]:
    """The file, read in one transaction. is_shared: other processes may use it meanwhile, and write
    to it; otherwise they cannot even open it. InUseByAnother if one has it open.
    """
    with database_errors_translated(path.parent):
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            if not is_shared:
                # In this mode SQLite locks the whole file, against readers, too.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            _begin(connection, path, is_shared=is_shared)
            yield Source(connection, path)
        finally:
            connection.close()


def _begin(connection: sqlite3.Connection, path: Path, *, is_shared: bool) -> None:
    try:
        connection.execute("BEGIN" if is_shared else "BEGIN IMMEDIATE")
        connection.execute("SELECT count(*) FROM sqlite_master")  # reading begins here
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise InUseByAnother(
                f"another process has {path} open: stop the hub, and wait for the end of other"
                " commands that use its data folder"
            ) from exc
        raise
