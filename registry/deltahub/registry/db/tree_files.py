"""Queries for the files of many trees at once."""

from sqlalchemy import Select, select
from sqlalchemy.orm import aliased

from deltahub.registry.db.models import Revision
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink


def files_of(tops: Select[int | None]) -> Select[int]:
    """A query for the files of these trees. A file of several leaves comes more than once.

    The database reads each node once, however many of the trees share it.
    """
    group, leaf = aliased(TreeLink), aliased(TreeLink)
    groups = select(group.child_id).where(group.parent_id.in_(tops))
    leaves = select(leaf.child_id).where(leaf.parent_id.in_(groups))
    return select(TreeEntry.file_id).where(TreeEntry.node_id.in_(leaves))


def trees_of_repository(repository_id: int) -> Select[int | None]:
    """A query for the trees of a repository's revisions, without the dropped ones."""
    return select(Revision.tree_id).where(
        Revision.repository_id == repository_id, Revision.tree_id.is_not(None)
    )
