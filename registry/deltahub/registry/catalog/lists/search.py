"""Lists of repositories in five orders, at a cost that does not grow.

A page walks an index in the order of the list. With filters it looks at a bounded number of rows
and then ends early, with a cursor. If a filter is rare, an index gives all that it leaves, and the
database sorts these few.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Select, Subquery, case, literal, select, tuple_, union_all

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.parts import Part, readable_parts
from deltahub.registry.access.permissions import readable_repositories, role_for
from deltahub.registry.catalog.lists.filters import Filter, KeysFilter, WordsFilter, rarest
from deltahub.registry.catalog.repositories import RepositoryInfo, as_info, with_heads
from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry

Order = Literal["created", "changed", "downloads", "size", "saved"]
# The column of each order. The newest come by their ids.
_COLUMNS: Final[Mapping[Order, str]] = {
    "changed": "head_id",
    "downloads": "downloads",
    "size": "logical_bytes",
    "saved": "saved_bytes",
}
ORDERS: Final[tuple[Order, ...]] = ("created", *_COLUMNS)
MAX_PAGE = 1000
# Rows that one page of a filtered list looks at, at first and in all.
_FIRST_ROWS: Final = 500
_MOST_ROWS: Final = 4000
_CURSOR: Final = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_Place: TypeAlias = tuple[int, int]
_Rows: TypeAlias = Select[Repository, str, Revision | None]
_Query = TypeVar("_Query", bound="Select[*tuple[Any, ...]]")


@dataclass(frozen=True)
class Listed:
    """A repository and the head of its main; None if there is none."""

    repository: Repository
    name: str  # namespace/name
    head: Revision | None

    @property
    def changed_at(self) -> datetime:
        return self.repository.created_at if self.head is None else self.head.created_at

    def cursor(self, order: Order) -> str:
        """The cursor of the page that starts after this repository."""
        return _cursor((_place(self.repository, order), self.repository.id))


@dataclass(frozen=True)
class Found:
    """A page. after: the cursor of the next one, None after the last.

    A page with fewer items than asked for has a next one if it looked at too many rows.
    """

    items: list[Listed]
    after: str | None


@dataclass(frozen=True)
class RepositoryPage:
    items: list[RepositoryInfo]
    next_cursor: str | None


def search(
    session: ReadSession,
    caller: Caller | None,
    *,
    namespace: str | None = None,
    words: Sequence[str] = (),
    keys: Sequence[frozenset[str]] = (),
    only_private: bool = False,
    order: Order = "created",
    after: str | None = None,
    limit: int = 100,
) -> Found:
    """Repositories that the caller may read: the latest, or most of what is sorted by, first.

    words: the full name must contain each, in any case. keys: the repository must have one key of
    each set (model_tags.py). only_private: without public ones. after: the cursor of the page
    before; InvalidRequest for another text. A repository that moves in the order between two pages
    may be listed again.
    """
    named = WordsFilter(tuple(word.lower() for word in words))
    place = None if after is None else _parsed(after)
    parts = readable_parts(session, caller, namespace)
    if only_private:
        parts = [part for part in parts if part.is_private]
    if not named.is_possible or not parts:
        return Found([], None)
    filters: list[Filter] = [KeysFilter(each) for each in keys]
    if named.words:
        filters.append(named)
    few = rarest(session, parts, filters)
    if few is None:
        return _walk(session, parts, filters, order, place, limit)
    query = with_heads().where(
        Repository.id.in_(few),
        _apart(readable_repositories(caller)),
        *(each.condition(Repository) for each in filters),
    )
    if only_private:
        query = query.where(_apart(Repository.is_private.is_(True)))
    query = _in_order(query, order, place, is_walk=False).limit(limit + 1)
    items = _items(session, query)
    more = len(items) > limit
    return Found(items[:limit], items[limit - 1].cursor(order) if more else None)


def list_repositories(
    reg: Registry,
    caller: Caller | None,
    namespace: str | None = None,
    search: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    order: Order = "created",
) -> RepositoryPage:
    """Repositories that the caller may read, newest first; `search` is a part of the name."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"a page has 1 to {MAX_PAGE} repositories, not {limit}")
    with reg.db.read() as session:
        found = _search(
            session, caller, namespace=namespace, words=[search] if search else [], order=order,
            after=cursor, limit=limit,
        )  # fmt: skip
        namespaces = {each.repository.namespace_id for each in found.items}
        roles = {each: role_for(session, caller, each) for each in namespaces}
        items = [
            as_info(each.repository, each.name, each.head, roles[each.repository.namespace_id])
            for each in found.items
        ]
    return RepositoryPage(items, found.after)


_search = search


def _walk(
    session: ReadSession,
    parts: Sequence[Part],
    filters: Sequence[Filter],
    order: Order,
    after: _Place | None,
    limit: int,
) -> Found:
    """Look at rows in the order of the list until the page is full or has cost enough."""
    items: list[Listed] = []
    n_seen = 0
    n_rows = max(limit + 1, _FIRST_ROWS) if filters else limit + 1
    while True:
        window = _window(parts, order, after, n_rows)
        items += _load(session, _matching(session, window, filters, limit + 1 - len(items)))
        if len(items) > limit:
            return Found(items[:limit], items[limit - 1].cursor(order))
        last = select(window.c.place, window.c.id).offset(n_rows - 1)
        end = session.execute(last).one_or_none()
        if end is None:
            return Found(items, None)
        after = (end[0], end[1])
        n_seen += n_rows
        if n_seen >= _MOST_ROWS:
            return Found(items, _cursor(after))
        n_rows = min(2 * n_rows, max(_MOST_ROWS - n_seen, 1))


def _matching(
    session: ReadSession, window: Subquery, filters: Sequence[Filter], limit: int
) -> list[int]:
    """The ids of the first rows of a window that match, in its order."""
    query = select(window.c.id).join(Namespace, Namespace.id == window.c.namespace_id)
    query = query.where(*(each.condition(window.c) for each in filters))
    query = query.order_by(window.c.place.desc(), window.c.id.desc()).limit(limit)
    return list(session.scalars(query))


def _load(session: ReadSession, ids: Sequence[int]) -> list[Listed]:
    """The repositories of these ids, in their order."""
    found = {
        one.repository.id: one
        for one in _items(session, with_heads().where(Repository.id.in_(ids)))
    }
    return [found[one] for one in ids]


def _window(parts: Sequence[Part], order: Order, after: _Place | None, n_rows: int) -> Subquery:
    """The next rows of the list, in its order: place, id, and what filters compare."""
    columns = (
        _column(order).label("place"),
        Repository.id,
        Repository.namespace_id,
        Repository.is_private,
        Repository.name,
    )
    selects = [
        _in_order(select(*columns).where(part.condition(Repository)), order, after).limit(n_rows)
        for part in parts
    ]
    if len(selects) == 1:
        return selects[0].subquery()
    every: Any = union_all(*(select(each.subquery()) for each in selects)).subquery()
    return select(every).order_by(every.c.place.desc(), every.c.id.desc()).limit(n_rows).subquery()


def _items(session: ReadSession, query: _Rows) -> list[Listed]:
    return [
        Listed(repository, f"{namespace}/{repository.name}", head)
        for repository, namespace, head in session.execute(query)
    ]


def _in_order(query: _Query, order: Order, after: _Place | None, *, is_walk: bool = True) -> _Query:
    """The rows after a place, in the order of the list. is_walk: by the index of the order."""
    place, row = _column(order), _int(Repository.id)
    if not is_walk:
        # An expression has no index, so the database sorts instead of walking all repositories.
        place, row = place + 0, row + 0
    if order == "created":
        if after is not None:
            query = query.where(row < after[1])
        return query.order_by(row.desc())
    if after is not None:
        query = query.where(tuple_(place, row) < tuple_(*after))
    return query.order_by(place.desc(), row.desc())


def _apart(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition as an expression, for which the database looks for no index."""
    return case((condition, 1), else_=0) == 1


def _column(order: Order) -> ColumnElement[int]:
    if order == "created":
        return literal(0)
    return _int(getattr(Repository, _COLUMNS[order]))


def _int(column: Any) -> ColumnElement[int]:
    found: ColumnElement[int] = column
    return found


def _place(repository: Repository, order: Order) -> int:
    if order == "created":
        return 0
    place: int = getattr(repository, _COLUMNS[order])
    return place


def _cursor(place: _Place) -> str:
    return f"{place[0]}-{place[1]}"


def _parsed(cursor: str) -> _Place:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(f"{quoted(cursor)} is no cursor of an earlier page")
    return int(match[1]), int(match[2])
