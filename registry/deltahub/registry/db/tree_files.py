"""Queries for the files of many trees at once."""

from sqlalchemy import ColumnElement, Select, exists, select
from sqlalchemy.orm import aliased

from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.tables.trees import Entry, TreeEntry, TreeLink


def files_of(tops: Select[int | None]) -> Select[int]:
    """A query for the files of these trees. A file of several leaves comes more than once.

    The database reads each node once, however many of the trees share it.
    """
    return select(TreeEntry.file_id).where(TreeEntry.node_id.in_(leaves_of(tops)))


def leaves_of(tops: Select[int | None]) -> Select[int]:
    """A query for the leaves of these trees. A shared leaf may come more than once."""
    group, leaf = aliased(TreeLink), aliased(TreeLink)
    groups = select(group.child_id).where(group.parent_id.in_(tops))
    return select(leaf.child_id).where(leaf.parent_id.in_(groups))


def trees_of_repository(repository_id: int) -> Select[int | None]:
    """A query for the trees of a repository's revisions, without the dropped ones."""
    return select(Revision.tree_id).where(
        Revision.repository_id == repository_id, Revision.tree_id.is_not(None)
    )


def is_listed_by(repository_id: int) -> ColumnElement[bool]:
    """SQL condition on File: a revision of the repository lists it.

    For few files: the database begins at the file, not at all entries of the repository.
    """
    # Without an index on the sum, no plan begins there.
    of_repository = Revision.repository_id + 0 == repository_id
    return exists(
        select(Entry.file_id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(Entry.file_id == File.id, of_repository)
    )
