"""Which adapters a base has, and which of them one user may move to another base."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name, namespace_role, readable_repositories
from deltahub.registry.adapters.files import CONFIG
from deltahub.registry.db.models import File, Namespace, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.lineage.target import declares

MOST: Final = 500  # adapters of one plan


@dataclass(frozen=True)
class FoundAdapter:
    """An adapter at the head of its main. base: the commit of the old base that it was trained on.

    why_skipped: why this user cannot move it; None if the user can.
    """

    repository: Repository
    revision: Revision
    name: str
    base: Revision
    why_skipped: str | None


def find_adapters(
    session: ReadSession, caller: Caller, old: Revision, new: Revision
) -> tuple[list[FoundAdapter], int]:
    """(adapters of any commit of the old base that the caller may read, how many more there are).

    One that names its base without a commit that the hub could tell counts as trained on `old`.
    """
    of_old = select(Revision.id).where(Revision.repository_id == old.repository_id)
    head, known = aliased(Revision), aliased(Revision)
    old_repository = session.get_one(Repository, old.repository_id)
    named = declares(full_name(session, old_repository), head)
    is_of_old = or_(
        head.declared_base_revision_id.in_(of_old),
        and_(head.declared_base_revision_id.is_(None), named),
    )
    is_adapter = exists(
        select(Entry.path).where(Entry.revision_id == head.id, Entry.path == CONFIG)
    )
    query = (
        select(Repository, head, known, Namespace.name)
        .join(Namespace, Namespace.id == Repository.namespace_id)
        .join(head, head.id == Repository.head_id)
        .outerjoin(known, known.id == head.declared_base_revision_id)
        .where(
            readable_repositories(caller),
            Repository.id.not_in((old.repository_id, new.repository_id)),
            is_of_old,
            is_adapter,
        )
        .order_by(Repository.id)
    )
    rows = session.execute(query.limit(2 * MOST)).all()
    new_repository = session.get_one(Repository, new.repository_id)
    found = [
        FoundAdapter(
            repository,
            revision,
            f"{namespace}/{repository.name}",
            base or old,
            why_not(session, caller, repository, (old_repository, new_repository)),
        )
        for repository, revision, base, namespace in rows[:MOST]
    ]
    return found, len(rows) - len(found)


def is_ingested(session: ReadSession, revision_id: int) -> bool:
    """Whether all files of a revision can be read from the store."""
    query = (
        select(File.id)
        .join(Entry, Entry.file_id == File.id)
        .where(Entry.revision_id == revision_id, File.state != "ingested")
    )
    return session.scalar(query.limit(1)) is None


def has_adapter(session: ReadSession, caller: Caller, old: Revision, new: Revision) -> bool:
    """Whether the base has an adapter that the caller may move."""
    return any(each.why_skipped is None for each in find_adapters(session, caller, old, new)[0])


def why_not(
    session: ReadSession, caller: Caller, adapter: Repository, bases: Sequence[Repository]
) -> str | None:
    """Why this user may not put a result made from these beside the adapter; None if allowed."""
    namespace = session.get_one(Namespace, adapter.namespace_id)
    if not may_decide(session, caller, namespace.id):
        return f"{caller.name} may not write to {namespace.name}"
    for base in bases:
        if base.is_private and base.namespace_id != adapter.namespace_id:
            return f"{full_name(session, base)} is private, and private data stays in its namespace"
    return None


def may_decide(session: ReadSession, caller: Caller, namespace_id: int) -> bool:
    """Whether the caller may write to a namespace, and so decides on the adapters there."""
    if caller.is_superuser:
        return True
    return caller.may_write and namespace_role(session, caller, namespace_id) in ("write", "admin")
