"""Sets of nodes: the leaves of many trees at once, and nodes that no revision needs any more."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import delete, exists, select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.trees import TreeLink, TreeNode


def leaves_below(session: ReadSession, tops: Iterable[int]) -> set[int]:
    """The leaves of these trees."""
    nodes = set(tops)
    for _ in range(2):
        children: set[int] = set()
        for batch in batches(sorted(nodes)):
            below = select(TreeLink.child_id).where(TreeLink.parent_id.in_(batch))
            children.update(session.scalars(below))
        nodes = children
    return nodes


def free(session: WriteSession, tops: Iterable[int]) -> None:
    """Delete those of the trees that no revision has, nor a dropped one, with what only they need.

    What they share with other trees stays.
    """
    left = set(tops)
    while left:
        children: set[int] = set()
        for batch in batches(sorted(left)):
            unused = list(
                session.scalars(select(TreeNode.id).where(TreeNode.id.in_(batch), *IS_UNUSED))
            )
            below = select(TreeLink.child_id).where(TreeLink.parent_id.in_(unused))
            children.update(session.scalars(below))
            # ON DELETE CASCADE deletes its links and entries.
            session.execute(delete(TreeNode).where(TreeNode.id.in_(unused)))
        left = children


# SQL conditions on TreeNode: no revision, dropped revision or node names it.
IS_UNUSED: Final = (
    ~exists(select(Revision.id).where(Revision.tree_id == TreeNode.id)),
    ~exists(select(DroppedRevision.id).where(DroppedRevision.tree_id == TreeNode.id)),
    ~exists(select(TreeLink.parent_id).where(TreeLink.child_id == TreeNode.id)),
)
