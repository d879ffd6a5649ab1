"""The tables that a move copies: those of the models, and the names that searches look through."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Text

from deltahub.registry.db.models import Base

# The tables of migration 0005 that have no model, because SQLite and PostgreSQL search differently.
# SQLite keeps the id of the repository as the number of the row.
_NAME_TABLES: Final = ("public_names", "private_names")


@dataclass(frozen=True)
class CopiedTable:
    """A table in both databases. source: the expressions that select its columns in SQLite."""

    name: str
    columns: tuple[Column[Any], ...]
    source: tuple[str, ...]

    @property
    def quoted_columns(self) -> str:
        return comma_separated(column.name for column in self.columns)


def copied_tables() -> Sequence[CopiedTable]:
    """All tables, each after those that its rows refer to."""
    tables = [
        CopiedTable(table.name, tuple(table.columns), tuple(quoted(c.name) for c in table.columns))
        for table in Base.metadata.sorted_tables
    ]
    names = (
        Column("repository_id", BigInteger, nullable=False),
        Column("name", Text, nullable=False),
    )
    tables += [CopiedTable(name, names, ("rowid", "name")) for name in _NAME_TABLES]
    return tables


def quoted(name: str) -> str:
    """The name of a table or column in SQL. Some of ours are words of SQL, such as `commit`."""
    return f'"{name}"'


def comma_separated(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
