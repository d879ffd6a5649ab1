"""Filters of lists of repositories, and the few repositories that a rare filter leaves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    and_,
    column,
    func,
    or_,
    select,
    table,
    union_all,
)

from deltahub.registry.access.parts import Part
from deltahub.registry.catalog.lists.model_tags import UNKNOWN
from deltahub.registry.db.expressions import contains
from deltahub.registry.db.models import Namespace
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.lists import ModelTag

# A filter that leaves at most so many repositories is rare: all of them are gathered and sorted.
MOST_GATHERED: Final = 5000
# Shorter words have no trigram, so that no index finds them.
_TRIGRAM: Final = 3
# Every name consists of these characters, in small letters.
_IN_NAMES: Final = re.compile(r"[a-z0-9._/-]+")

Ids: TypeAlias = Select[int]


@dataclass(frozen=True)
class KeysFilter:
    """Repositories with one of these keys (model_tags.py), and those without known keys."""

    keys: frozenset[str]

    def ids(self, session: ReadSession, part: Part) -> Ids | None:
        """The repositories of a part, by an index."""
        return select(ModelTag.repository_id).where(self._is_one(), part.condition(ModelTag))

    def condition(self, row: Any) -> ColumnElement[bool]:
        """True for a row with the columns of repositories."""
        found = select(ModelTag.repository_id).where(
            self._is_one(),
            ModelTag.is_private == row.is_private,
            ModelTag.namespace_id == row.namespace_id,
            ModelTag.repository_id == row.id,
        )
        # With an offset PostgreSQL looks each row up; without it, it reads all rows of a tag.
        return found.offset(0).exists()

    def _is_one(self) -> ColumnElement[bool]:
        return ModelTag.tag.in_([*sorted(self.keys), UNKNOWN])


@dataclass(frozen=True)
class WordsFilter:
    """Repositories whose full name contains each of these words, in any case."""

    words: tuple[str, ...]

    @property
    def is_possible(self) -> bool:
        """Whether a name may contain them."""
        return all(_IN_NAMES.fullmatch(word) for word in self.words)

    def ids(self, session: ReadSession, part: Part) -> Ids | None:
        """The repositories of a part, by an index of trigrams; None if no word has one."""
        words = [word for word in self.words if len(word) >= _TRIGRAM]
        if not words:
            return None
        names = "private_names" if part.is_private else "public_names"
        prefixes = (
            None if part.namespaces is None else [f"{name.lower()}/" for _, name in part.namespaces]
        )
        if session.get_bind().dialect.name == "sqlite":
            return _in_sqlite(names, words, prefixes)
        return _in_postgresql(names, words, prefixes)

    def condition(self, row: Any) -> ColumnElement[bool]:
        """True for a row with the columns of repositories, joined with its namespace."""
        full_name = func.lower(Namespace.name + "/" + row.name)
        return and_(*(contains(full_name, word) for word in self.words))


Filter: TypeAlias = KeysFilter | WordsFilter


def rarest(
    session: ReadSession, parts: Sequence[Part], filters: Sequence[Filter]
) -> Select[int] | None:
    """The ids of the filter that leaves the fewest repositories; None if none is rare."""
    best: tuple[int, Select[int]] | None = None
    for each in filters:
        ids = [found for part in parts if (found := each.ids(session, part)) is not None]
        if not ids:
            continue
        limit = MOST_GATHERED + 1
        limited = [select(one.limit(limit).subquery()) for one in ids]
        every = union_all(*limited).subquery()
        counted = select(every.c[0]).limit(limit).subquery()
        n = session.scalar(select(func.count()).select_from(counted)) or 0
        if n < limit and (best is None or n < best[0]):
            best = (n, select(every.c[0]))
    return None if best is None else best[1]


def _in_sqlite(names: str, words: Sequence[str], prefixes: Sequence[str] | None) -> Ids:
    # A phrase of FTS5 in quotes is a substring here; ^ asks for the beginning of the name.
    phrases = [f'"{word}"' for word in words]
    if prefixes is not None:
        phrases.append("(" + " OR ".join(f'^"{prefix}"' for prefix in prefixes) + ")")
    row_id: Any = column("rowid")
    every = table(names, column("rowid"), column(names, String))
    return select(row_id).select_from(every).where(every.c[names].match(" AND ".join(phrases)))


def _in_postgresql(names: str, words: Sequence[str], prefixes: Sequence[str] | None) -> Ids:
    every = table(names, column("repository_id"), column("name", String))
    conditions: list[Any] = [every.c.name.like(f"%{_escaped(word)}%") for word in words]
    if prefixes is not None:
        conditions.append(or_(*(every.c.name.like(f"{_escaped(one)}%") for one in prefixes)))
    row_id: Any = every.c.repository_id
    return select(row_id).where(*conditions)


def _escaped(text: str) -> str:
    # A backslash escapes by default; names hold neither it nor %.
    return text.replace("_", "\\_")
