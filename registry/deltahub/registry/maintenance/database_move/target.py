"""An empty PostgreSQL database, which a move fills in one transaction."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from deltahub.registry.db import schema
from deltahub.registry.db.opening.migration_lock import migration_lock
from deltahub.registry.db.session import Database
from deltahub.registry.maintenance.database_move.binary_rows import HEADER, TRAILER, Digest
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from deltahub.registry.maintenance.database_move.tables import CopiedTable, quoted

# Rows are sent to the server in pieces of about this size.
_PIECE_BYTES: Final = 1 << 16

# The schema in which the hub's tables are, as the other queries need it.
_OURS: Final = "quote_ident(current_schema())::regnamespace"
_FOREIGN_KEYS: Final = f"""
SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype = 'f' AND connamespace = {_OURS} ORDER BY conname
"""
# Those of primary keys and unique columns stay, because they belong to constraints.
_INDEXES: Final = f"""
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
JOIN pg_class ON pg_class.oid = indrelid WHERE relnamespace = {_OURS} AND NOT indisunique
ORDER BY 1
"""
_TABLES_WITH_TRIGGERS: Final = f"""
SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = {_OURS} AND NOT tgisinternal
"""
_SEQUENCES: Final = f"""
SELECT * FROM (
    SELECT relname, attname, pg_get_serial_sequence(quote_ident(relname), attname) AS sequence
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
    WHERE relnamespace = {_OURS} AND relkind = 'r'
) AS columns WHERE sequence IS NOT NULL
"""


class Target:
    """The database, in a transaction that nobody sees before commit()."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self._cursor: psycopg.Cursor[Any] = driver.cursor()
        self._restoring: list[str] = []

    def prepare(self) -> None:
        """Settings of this transaction; DatabaseMoveRefused if the database holds no UTF-8."""
        self._run("SET LOCAL statement_timeout = 0")
        self._run("SET LOCAL idle_in_transaction_session_timeout = 0")
        self._run("SET LOCAL client_encoding = 'UTF8'")
        encoding = self._run("SHOW server_encoding").fetchall()[0][0]
        if encoding != "UTF8":
            raise DatabaseMoveRefused(
                f"the target's encoding is {encoding}: name a database whose encoding is UTF8"
            )

    def has_tables(self) -> bool:
        return bool(inspect(self._connection).get_table_names())

    def store_mark(self) -> str | None:
        """The mark of the hub that this database is of; None without one, or in another schema."""
        if schema.version_of(self._connection) != schema.head():
            return None
        found = self._run("SELECT mark FROM object_stores WHERE state = 'current'").fetchone()
        return None if found is None else str(found[0])

    def make_tables(self) -> None:
        """Make the tables, without what slows copying or has to wait for its end."""
        schema.migrate(self._connection)
        # A trigger would note or name each row again that is copied already.
        for (table,) in self._run(_TABLES_WITH_TRIGGERS).fetchall():
            self._run(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            self._restoring.append(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        # Rows may refer to rows that come later. All are checked at once at the end.
        for table, name, definition in self._run(_FOREIGN_KEYS).fetchall():
            self._run(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
            self._restoring.append(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
        # To build an index once is faster than to grow it row by row, and comes before the keys.
        for name, definition in self._run(_INDEXES).fetchall():
            self._run(f"DROP INDEX {name}")
            self._restoring.insert(0, definition)

    def copy(self, table: CopiedTable, rows: Iterable[bytes]) -> Digest:
        """Send the rows to the server, in bounded memory; what was sent."""
        digest = Digest()
        statement = f"COPY {quoted(table.name)} ({table.quoted_columns}) FROM STDIN (FORMAT BINARY)"
        with _errors_as_sqlalchemys(), self._cursor.copy(statement.encode()) as copy:
            piece = bytearray(HEADER)
            for row in rows:
                digest.add(row)
                piece += row
                if len(piece) >= _PIECE_BYTES:
                    copy.write(bytes(piece))
                    piece.clear()
            copy.write(bytes(piece + TRAILER))
        return digest

    def digest(self, table: CopiedTable) -> Digest:
        """What the server has of a table, in bounded memory."""
        digest = Digest()
        statement = f"COPY {quoted(table.name)} ({table.quoted_columns}) TO STDOUT (FORMAT BINARY)"
        with _errors_as_sqlalchemys(), self._cursor.copy(statement.encode()) as copy:
            header = len(HEADER)
            for message in copy:  # by the protocol one row each, the first behind the header
                row = memoryview(message)[header:]
                header = 0
                if row and row != TRAILER:
                    digest.add(row)
        return digest

    def restore_schema(self) -> None:
        """Make indexes, foreign keys and triggers again, and the statistics of the planner."""
        for statement in self._restoring:
            self._run(statement)
        self._run("ANALYZE")

    def set_sequences(self, last_ids: Mapping[str, int]) -> None:
        """Let new rows get ids above all that are there, and above the last ids."""
        for table, column, sequence in self._run(_SEQUENCES).fetchall():
            highest = f"greatest(max({quoted(column)}), %s::bigint) AS highest"
            self._run(
                f"SELECT setval(%s, highest) FROM (SELECT {highest} FROM {quoted(table)}) AS ids"
                " WHERE highest >= 1",
                (sequence, last_ids.get(table)),
            )

    def commit(self) -> None:
        self._connection.commit()

    def _run(self, statement: str, values: tuple[Any, ...] | None = None) -> psycopg.Cursor[Any]:
        """By the driver itself, because SQLAlchemy gives a meaning to % and : in statements."""
        with _errors_as_sqlalchemys():
            return self._cursor.execute(statement.encode(), values)


@contextmanager
def opened_target(url: str) -> Iterator[Target]:
    """The database, in a transaction that is rolled back unless commit() is called. Hubs that start
    on it wait until the end. Unavailable if it cannot be reached.
    """
    database = Database(url)
    try:
        with (
            database.errors_translated(),
            migration_lock(database),
            database.write_engine.connect() as connection,
        ):
            connection.begin()
            yield Target(connection)
    finally:
        database.close()


@contextmanager
def _errors_as_sqlalchemys() -> Iterator[None]:
    """Errors of the driver as SQLAlchemy raises them, so that they are translated as usual."""
    try:
        yield
    except psycopg.Error as exc:
        raise DBAPIError.instance(None, None, exc, psycopg.Error) from exc
