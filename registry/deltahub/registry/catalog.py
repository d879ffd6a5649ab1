"""Lists of repositories as people look for them: the newest or the last changed first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import func, tuple_

from deltahub.registry.db.expressions import contains
from deltahub.registry.db.models import Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.permissions import Caller, readable_repositories
from deltahub.registry.repositories import with_heads

Order = Literal["created", "changed"]


@dataclass(frozen=True)
class Listed:
    """A repository and its head; None while it is empty."""

    repository: Repository
    name: str  # namespace/name
    head: Revision | None

    @property
    def changed_at(self) -> datetime:
        return self.repository.created_at if self.head is None else self.head.created_at

    def cursor(self, order: Order) -> str:
        """Where a list goes on after this one."""
        head = 0 if self.head is None or order == "created" else self.head.id
        return f"{head}-{self.repository.id}"


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

    words: each a part of the full name, in whatever case. after: the cursor of the one before; a
    repository that is committed to while somebody pages may be listed again.
    """
    newest = func.coalesce(Revision.id, 0) if order == "changed" else func.coalesce(0, 0)
    query = with_heads().where(readable_repositories(caller))
    if namespace is not None:
        query = query.where(Namespace.name == namespace)
    full = func.lower(Namespace.name + "/" + Repository.name)
    for word in (words or "").lower().split():
        query = query.where(contains(full, word))
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
