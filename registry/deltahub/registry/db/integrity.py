"""What is wrong in a SQLite file: its pages and indexes, its references, and its values.

PostgreSQL checks references and values itself. Its pages and indexes are its administrator's to
check (pg_amcheck), because the hub's role may not read them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, LargeBinary, Table, func, literal_column, select

from deltahub.registry.db.checked_types import DAMAGED
from deltahub.registry.db.models import Base
from deltahub.registry.db.session import Database
from deltahub.registry.errors import DataLost

# Sentences of SQLite that are shown, and rows that are named of each table.
MAX_SHOWN: Final = 100
_PAGE_ROWS: Final = 1000
_ROW_ID: Final[ColumnElement[int]] = literal_column("rowid")


def file_damage(database: Database, most: int = MAX_SHOWN) -> list[str]:
    """At most `most` sentences about damaged pages and indexes; none for PostgreSQL."""
    if not database.is_sqlite:
        return []
    try:
        with database.read() as session:
            rows = session.connection().exec_driver_sql(f"PRAGMA integrity_check({most})")
            found = [line for (text,) in rows for line in str(text).splitlines()]
    except DataLost as exc:
        return [reason(exc)]  # even this check cannot read it
    return [] if found == ["ok"] else found[:most]


def dangling_references(database: Database) -> Iterator[tuple[str, str, int, int]]:
    """(table, table that it refers to, number of rows, first row id) where rows are missing."""
    if not database.is_sqlite:
        return
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    with database.read() as session:
        rows = session.connection().exec_driver_sql("PRAGMA foreign_key_check")
        for table, row_id, target, _ in rows:
            counts[table, target] += 1
            first.setdefault((table, target), row_id)
    for (table, target), count in counts.items():
        yield table, target, count, first[table, target]


def undecodable_values(database: Database) -> Iterator[tuple[str, int, str, str]]:
    """(table, row id, column, reason) of values that the hub cannot read, MAX_SHOWN a table."""
    if not database.is_sqlite:
        return
    for table in Base.metadata.sorted_tables:
        shown = 0
        for row_ids in _pages_of_row_ids(database, table):
            first, last = row_ids[0], row_ids[-1]
            if _fault(database, table, list(table.columns), first, last) is None:
                continue
            for row_id in row_ids:
                for column in table.columns:
                    fault = _fault(database, table, [column], row_id, row_id)
                    if fault is not None and shown < MAX_SHOWN:
                        shown += 1
                        yield table.name, row_id, column.name, fault
            if shown == MAX_SHOWN:
                break


def reason(exc: DataLost) -> str:
    """What is damaged, without the advice to run fsck."""
    return str(exc).removeprefix(DAMAGED).strip()


def _pages_of_row_ids(database: Database, table: Table) -> Iterator[list[int]]:
    last = -(1 << 63)
    while True:
        with database.read() as session:
            page = session.scalars(
                select(_ROW_ID)
                .select_from(table)
                .where(_ROW_ID > last)
                .order_by(_ROW_ID)
                .limit(_PAGE_ROWS)
            ).all()
        if not page:
            return
        yield list(page)
        last = page[-1]


def _fault(
    database: Database, table: Table, columns: list[Any], first: int, last: int
) -> str | None:
    """Why these columns of rows first..last cannot be read; None if they can."""
    wanted = [_readable(column) for column in columns]
    binary = [i for i, column in enumerate(columns) if isinstance(column.type, LargeBinary)]
    query = select(*wanted).select_from(table).where(_ROW_ID.between(first, last))
    try:
        with database.read() as session:
            for row in session.execute(query):
                for i in binary:
                    if row[i] not in ("blob", "null"):
                        return f"the row holds {row[i]} where bytes belong"
    except DataLost as exc:
        return reason(exc)
    return None


def _readable(column: Any) -> ColumnElement[Any]:
    """The column; of bytes only their type, because they may be long and every byte is valid."""
    found: ColumnElement[Any] = column
    return func.typeof(found) if isinstance(found.type, LargeBinary) else found
