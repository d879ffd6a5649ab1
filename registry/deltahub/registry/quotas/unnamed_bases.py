"""What a repository's differences need although no revision names it any more: who pays for it.

Such a tensor was in a revision that was pruned or deleted. It counts with the oldest repository
that has a difference from it, or from a difference from it that no revision names either.
"""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.orm import InstrumentedAttribute

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import FileTensor, Revision, TensorBase
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry, TreeEntry, TreeNode
from deltahub.registry.db.tree_files import files_of


def unnamed_bases(session: ReadSession, repository_id: int, named: Select[int]) -> set[int]:
    """The tensors that count with the repository though none of its revisions names them.

    named: a query for the tensors that its revisions name.
    """
    first = select(TensorBase.base_id).where(
        TensorBase.tensor_id.in_(named),
        ~_is_named(TensorBase.base_id),
    )
    needed = level = set(session.scalars(first.distinct()))
    while level:
        level = {
            base
            for batch in batches(sorted(level))
            for base in session.scalars(
                select(TensorBase.base_id).where(
                    TensorBase.tensor_id.in_(batch), ~_is_named(TensorBase.base_id)
                )
            )
        } - needed
        needed = needed | level
    return needed - _needed_by_older(session, repository_id, needed)


def repositories_needing(
    session: ReadSession, repository_id: int, trees: Select[int | None]
) -> set[int]:
    """Other repositories with differences from what is in these trees of a repository.

    They are to be measured again once the trees are no revisions' any more.
    """
    bases = select(FileTensor.tensor_id).where(FileTensor.file_id.in_(files_of(trees)))
    query = (
        select(TreeNode.repository_id)
        .join(TreeEntry, TreeEntry.node_id == TreeNode.id)
        .join(FileTensor, FileTensor.file_id == TreeEntry.file_id)
        .join(TensorBase, TensorBase.tensor_id == FileTensor.tensor_id)
        .where(TensorBase.base_id.in_(bases), TreeNode.repository_id != repository_id)
    )
    return set(session.scalars(query.distinct()))


def _needed_by_older(session: ReadSession, repository_id: int, tensors: Iterable[int]) -> set[int]:
    """Those that an older repository needs, and other tensors that it needs for them."""
    by_older: set[int] = set()
    bases: dict[int, set[int]] = {}  # of differences that no revision names
    level = seen = set(tensors)
    while level:
        found: set[int] = set()
        for batch in batches(sorted(level)):
            is_older = _is_named(TensorBase.tensor_id, Revision.repository_id < repository_id)
            query = select(TensorBase.base_id, TensorBase.tensor_id, is_older).where(
                TensorBase.base_id.in_(batch), is_older | ~_is_named(TensorBase.tensor_id)
            )
            for base, delta, is_paid in session.execute(query):
                if is_paid:
                    by_older.add(base)
                else:
                    bases.setdefault(delta, set()).add(base)
                    found.add(delta)
        level = found - seen
        seen = seen | level
    left = list(by_older)
    while left:
        more = bases.get(left.pop(), set()) - by_older
        by_older |= more
        left += more
    return by_older


def _is_named(
    tensor: InstrumentedAttribute[int], *conditions: ColumnElement[bool]
) -> ColumnElement[bool]:
    """SQL condition: a revision names the tensor. conditions: on Revision."""
    return exists(
        select(FileTensor.tensor_id)
        .join(Entry, Entry.file_id == FileTensor.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(FileTensor.tensor_id == tensor, *conditions)
        .correlate(TensorBase)
    )
