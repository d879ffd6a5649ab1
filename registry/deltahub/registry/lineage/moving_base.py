"""A base that is declared without a revision follows main while main only gains weights.

Clients create a repository with a first commit of its own, then send a tokenizer or a card, and
then shards, one commit after the other. When a commit replaces weights, the declaration stays at
the revision before it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import aliased

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.catalog import declared_base
from deltahub.registry.catalog.lists.model_tags import write_keys
from deltahub.registry.catalog.refs import find_ref
from deltahub.registry.catalog.weights import weight_tensors
from deltahub.registry.db.models import LineageEdge, Repository, Revision, User
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.registry.lineage.target import Target, declares


def declares_model(target: Target) -> ColumnElement[bool]:
    """True for a revision that declares the target's model as its base, at any revision."""
    own = select(Revision.id).where(Revision.repository_id == target.repository_id)
    found = Revision.declared_base_revision_id
    return or_(and_(declares(target.name), found.is_(None)), found.in_(own))


def author_of(session: ReadSession, revision: Revision) -> Caller | None:
    """The author as a caller without an administrator's rights; None if the user was deleted."""
    if revision.author_id is None:
        return None
    user = session.get_one(User, revision.author_id)
    return Caller(user.id, user.name, is_admin=False, scope="read")


@dataclass(frozen=True)
class Move:
    """A declared base that is to be resolved anew. before: None if it was absent until now."""

    child: Revision
    before: Revision | None
    after: Revision


def find_moves(session: ReadSession, target: Target) -> list[Move]:
    """The declarations of the target's model that are to be resolved anew.

    Absent ones, if their author may read the model now; and those of an earlier revision of main,
    if main has only gained weights since and they name no revision.
    """
    return _absent(session, target) + _behind(session, target)


def find_own_move(session: ReadSession, revision: Revision) -> list[Move]:
    """The same for the declaration of one revision; at most one."""
    if revision.declared_base in (None, declared_base.NO_BASE):
        return []
    author = author_of(session, revision)
    found = declared_base.resolve_declared(session, author, revision.declared_base)
    if found is None or found.repository_id == revision.repository_id:
        return []
    if revision.declared_base_revision_id is None:
        return [Move(revision, None, found)]
    if found.id == revision.declared_base_revision_id or "@" in revision.declared_base:
        return []
    before = session.get_one(Revision, revision.declared_base_revision_id)
    is_same = before.repository_id == found.repository_id
    if is_same and _only_gained_weights(session, before, found):
        return [Move(revision, before, found)]
    return []


def apply_moves(session: WriteSession, moves: Iterable[Move]) -> set[int]:
    """Resolve the declarations, each with its declared edge; returns their revisions."""
    moved: set[int] = set()
    for each in moves:
        _redeclare(session, each.child, each.before or each.after, each.after)
        session.flush()
        write_keys(session, each.child.id)
        moved.add(each.child.id)
    return moved


def _absent(session: ReadSession, target: Target) -> list[Move]:
    moves: list[Move] = []
    rows = session.scalars(
        select(Revision).where(
            declares(target.name),
            # An expression, so that the index of this column is not used: it would lead through all
            # revisions without a base.
            func.coalesce(Revision.declared_base_revision_id, 0) == 0,
        )
    ).all()
    for revision in rows:
        assert revision.declared_base is not None, "the query asks for it"
        author = author_of(session, revision)
        base = declared_base.resolve_declared(session, author, revision.declared_base)
        if base is not None and base.id != revision.id:
            moves.append(Move(revision, None, base))
    return moves


def _behind(session: ReadSession, target: Target) -> list[Move]:
    repository = session.get_one(Repository, target.repository_id)
    head = find_ref(session, repository, "branch", DEFAULT_BRANCH)
    if head is None:
        return []
    moves: list[Move] = []
    for base in _declared_revisions(session, target.repository_id):
        if base.id == head.id or not _only_gained_weights(session, base, head):
            continue
        children = session.scalars(
            select(Revision).where(
                Revision.declared_base_revision_id == base.id,
                Revision.declared_base.not_like("%@%"),
            )
        ).all()
        for child in children:
            if child.id != head.id and allowed(
                session, author_of(session, child), "read", repository
            ):
                moves.append(Move(child, base, head))
    return moves


def _declared_revisions(session: ReadSession, repository_id: int) -> list[Revision]:
    """Revisions of a repository that are bases of declarations without a revision."""
    child = aliased(Revision)
    is_named = (
        select(child.id)
        .where(
            child.declared_base_revision_id == Revision.id,
            child.declared_base.not_like("%@%"),
        )
        .exists()
    )
    query = select(Revision).where(Revision.repository_id == repository_id, is_named)
    return list(session.scalars(query))


def _only_gained_weights(session: ReadSession, before: Revision, after: Revision) -> bool:
    """Whether `after` has all weights of `before`, and more. False while `before` is ingested."""
    job = None if before.ingest_job_id is None else session.get(Job, before.ingest_job_id)
    if job is not None and job.state in queue.ACTIVE:
        return False
    old, new = weight_tensors(before.id), weight_tensors(after.id)
    has_more = session.scalar(new.except_(old).limit(1)) is not None
    return has_more and session.scalar(old.except_(new).limit(1)) is None


def _redeclare(session: WriteSession, child: Revision, before: Revision, after: Revision) -> None:
    child.declared_base_revision_id = after.id
    session.execute(
        delete(LineageEdge).where(
            LineageEdge.child_id == child.id,
            LineageEdge.parent_id.in_((before.id, after.id)),
            LineageEdge.origin == "declared",
        )
    )
    repository = session.get_one(Repository, child.repository_id)
    declared_base.declare(session, repository, child, after)
