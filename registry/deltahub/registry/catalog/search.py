"""Lists of repositories, the newest or the last changed first."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Select, func, select, tuple_

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import readable_repositories, role_for
from deltahub.registry.catalog.repositories import RepositoryInfo, as_info, with_heads
from deltahub.registry.db.expressions import contains
from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry

Order = Literal["created", "changed"]
MAX_PAGE = 1000


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
        head = 0 if self.head is None or order == "created" else self.head.id
        return f"{head}-{self.repository.id}"


@dataclass(frozen=True)
class RepositoryPage:
    items: list[RepositoryInfo]
    next_cursor: str | None


def search(
    session: ReadSession,
    caller: Caller | None,
    *,
    namespace: str | None = None,
    words: str | None = None,
    order: Order = "created",
    after: str | None = None,
    limit: int = 100,
) -> list[Listed]:
    """Repositories that the caller may read, the latest first.

    words: separated by spaces; the full name must contain each, in any case. after: the cursor of
    the last repository of the page before. A repository with a new commit between two pages may be
    listed again.
    """
    newest = func.coalesce(Revision.id, 0) if order == "changed" else func.coalesce(0, 0)
    query = _readable(caller, namespace, (words or "").split())
    if after is not None:
        head, _, repository = after.partition("-")
        if head.isdecimal() and repository.isdecimal():
            place = tuple_(newest, Repository.id)
            query = query.where(place < tuple_(int(head), int(repository)))
    query = query.order_by(newest.desc(), Repository.id.desc()).limit(limit)
    return [
        Listed(repository, f"{name}/{repository.name}", head)
        for repository, name, head in session.execute(query)
    ]


def list_repositories(
    reg: Registry,
    caller: Caller | None,
    namespace: str | None = None,
    search: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> RepositoryPage:
    """Repositories that the caller may read, newest first; `search` is a part of the name."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"a page has 1 to {MAX_PAGE} repositories, not {limit}")
    query = _readable(caller, namespace, [search] if search else [])
    if cursor is not None:
        query = query.where(Repository.id < _parse_cursor(cursor))
    query = query.order_by(Repository.id.desc()).limit(limit + 1)
    with reg.db.read() as session:
        found = session.execute(query).all()
        namespaces = {row[0].namespace_id for row in found}
        roles = {each: role_for(session, caller, each) for each in namespaces}
        items = [as_info(*row, roles[row[0].namespace_id]) for row in found]
    more = len(items) > limit
    return RepositoryPage(items[:limit], str(items[limit - 1].id) if more else None)


def _readable(
    caller: Caller | None, namespace: str | None, parts: Iterable[str]
) -> Select[Repository, str, Revision | None]:
    """A query for the repositories that the caller may read.

    parts: the full name must contain each, in any case.
    """
    query = with_heads().where(readable_repositories(caller))
    if namespace is not None:
        # By id and not through the join, so that one index also gives the order.
        named = select(Namespace.id).where(Namespace.name == namespace).scalar_subquery()
        query = query.where(Repository.namespace_id == named)
    for part in parts:
        full_name = func.lower(Namespace.name + "/" + Repository.name)
        query = query.where(contains(full_name, part.lower()))
    return query


def _parse_cursor(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidRequest(f"{quoted(cursor)} is no cursor of an earlier page")
    return int(cursor)
