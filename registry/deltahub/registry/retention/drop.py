"""Dropping revisions: nobody can read them from then on, and gc frees their bytes after a grace.

A dropped revision moves, with its tree, to a table of its own. Whatever asks which files a
repository has, or who may read a tensor, begins at `revisions`, so it cannot forget to leave out
what was dropped.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from sqlalchemy import delete, exists, select, update
from sqlalchemy.orm import aliased

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import delete_ref_row
from deltahub.registry.catalog.trees.nodes import leaves_below
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, LineageEdge, Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink, TreeNode
from deltahub.registry.quotas.unnamed_bases import repositories_needing
from deltahub.registry.quotas.usage import measure
from deltahub.registry.registry import Registry

Reason = Literal["ref removed", "squashed", "file deleted", "pruned"]


def unreachable(session: ReadSession, repository: Repository) -> list[int]:
    """Ids of the revisions that no branch or tag reaches, the oldest first."""
    rows = session.execute(
        select(Revision.id, Revision.commit, Revision.parent_commit).where(
            Revision.repository_id == repository.id
        )
    ).all()
    known = {commit: (row_id, parent) for row_id, commit, parent in rows}
    heads = select(Ref.revision_id).where(Ref.repository_id == repository.id)
    by_id = {row_id: commit for row_id, commit, _ in rows}
    left = [by_id[head] for head in session.scalars(heads)]
    while left:
        row = known.pop(left.pop(), None)
        if row is not None and row[1] is not None:
            left.append(row[1])
    return sorted(row_id for row_id, _ in known.values())


def delete_ref(reg: Registry, caller: Caller | None, name: str, kind: str, ref: str) -> int:
    """Remove a branch or tag, and drop the revisions that no other one reaches; how many.

    InvalidRequest for the branch main; RevisionNotFound.
    """
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        session.refresh(repository, with_for_update=True)
        delete_ref_row(session, repository, name, kind, ref)
        n_dropped = drop_unreachable(session, caller, repository, "ref removed")
        audit.append(session, caller, "ref.delete", name, {"kind": kind, "ref": ref})
        return n_dropped


def sweep(reg: Registry) -> int:
    """Drop what no branch or tag reaches in any repository; how many revisions.

    Removing a branch does this at once. Releases before 0.1 did not.
    """
    child = aliased(Revision)
    has_child = exists(
        select(child.id).where(
            child.repository_id == Revision.repository_id, child.parent_commit == Revision.commit
        )
    )
    has_ref = exists(select(Ref.name).where(Ref.revision_id == Revision.id))
    query = select(Revision.repository_id).where(~has_ref, ~has_child).distinct()
    with reg.db.read() as session:
        having = list(session.scalars(query))
    n_dropped = 0
    for row_id in having:
        with reg.db.write() as session:
            repository = session.get(Repository, row_id)
            if repository is not None:
                session.refresh(repository, with_for_update=True)
                n_dropped += drop_unreachable(session, None, repository, "ref removed")
    return n_dropped


def drop_unreachable(
    session: WriteSession,
    caller: Caller | None,
    repository: Repository,
    reason: Reason,
    heirs: Mapping[int, int] | None = None,
) -> int:
    """Drop the revisions that no branch or tag reaches; how many there were.

    The caller holds the lock of the repository's row. heirs: see drop.
    """
    found = unreachable(session, repository)
    drop(session, caller, found, reason, heirs or {})
    return len(found)


def drop(
    session: WriteSession,
    caller: Caller | None,
    revisions: Sequence[int],
    reason: Reason,
    heirs: Mapping[int, int],
) -> None:
    """Move these revisions, the oldest first, to the dropped ones.

    caller: None for a rule or gc. heirs: revision -> the one that stands in its place as the base
    of other models.
    """
    repositories: set[int] = set()
    trees: set[int] = set()
    for batch in batches(revisions):
        rows = session.scalars(select(Revision).where(Revision.id.in_(batch)).order_by(Revision.id))
        for row in rows.all():
            repositories.add(row.repository_id)
            dropped = DroppedRevision(
                repository_id=row.repository_id,
                commit=row.commit,
                parent_commit=row.parent_commit,
                number=row.number,
                message=row.message,
                author_id=row.author_id,
                created_at=row.created_at,
                declared_base=row.declared_base,
                reason=reason,
                dropped_by=None if caller is None else caller.name,
                tree_id=row.tree_id,
            )
            session.add(dropped)
            if row.tree_id is not None:
                trees.add(row.tree_id)
        session.flush()
        _hand_over(session, batch, heirs)
        # ON DELETE CASCADE deletes the edges.
        session.execute(delete(Revision).where(Revision.id.in_(batch)))
    _say_why(session, trees, reason)
    session.expire_all()
    for repository_id in repositories:
        dropped_trees = select(DroppedRevision.tree_id).where(
            DroppedRevision.repository_id == repository_id
        )
        needing = repositories_needing(session, repository_id, dropped_trees)
        for row_id in sorted({repository_id, *needing}):
            measure(session, row_id)


def _say_why(session: WriteSession, trees: Collection[int], reason: Reason) -> None:
    """Note the reason at the files of leaves that no revision has any more."""
    group, leaf = aliased(TreeLink), aliased(TreeLink)
    is_listed = exists(
        select(Revision.id)
        .join(group, group.parent_id == Revision.tree_id)
        .join(leaf, leaf.parent_id == group.child_id)
        .where(leaf.child_id == TreeNode.id)
    )
    for batch in batches(sorted(leaves_below(session, trees))):
        left = select(TreeNode.id).where(TreeNode.id.in_(batch), ~is_listed)
        files = select(TreeEntry.file_id).where(TreeEntry.node_id.in_(left))
        session.execute(
            update(File)
            .where(File.id.in_(files))
            .values(left_by=reason)
            .execution_options(synchronize_session=False)
        )


def _hand_over(session: WriteSession, leaving: Collection[int], heirs: Mapping[int, int]) -> None:
    """Let models that were made from these revisions be made from their heirs."""
    handed = {old: heirs[old] for old in leaving if old in heirs}
    for old, new in handed.items():
        session.execute(
            update(Revision)
            .where(Revision.declared_base_revision_id == old)
            .values(declared_base_revision_id=new)
        )
        known = select(LineageEdge.child_id, LineageEdge.kind, LineageEdge.origin)
        has = {tuple(row) for row in session.execute(known.where(LineageEdge.parent_id == new))}
        edges = session.scalars(select(LineageEdge).where(LineageEdge.parent_id == old))
        for edge in edges.all():
            is_own = edge.child_id == new  # no model is made from itself
            if not is_own and (edge.child_id, edge.kind, edge.origin) not in has:
                edge.parent_id = new
    session.flush()
