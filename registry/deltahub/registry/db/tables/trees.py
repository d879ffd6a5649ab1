"""Trees of revisions: which file is at which path. A commit stores what it changes of its parent's.

A tree has three levels: a top node, group nodes and leaf nodes. A leaf has entries in order of
path; a node above it has links to its children in the same order. Nodes belong to one repository,
and the trees of its revisions share those that are equal. Only catalog/trees writes these tables.

Entry and DroppedEntry are no tables but joins, for queries: they take part in others like a table,
and cost a look into each node of the trees that a query does not exclude.
"""

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, Subquery, select
from sqlalchemy.orm import Mapped, aliased, mapped_column

from deltahub.registry.db.columns import Base, Id, PathText
from deltahub.registry.db.models import Revision
from deltahub.registry.db.tables.retention import DroppedRevision


class TreeNode(Base):
    """A node of trees of a repository. Its rows lie in tree_links, or in tree_entries."""

    __tablename__ = "tree_nodes"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    repository_id: Mapped[int] = mapped_column(
        ForeignKey("repositories.id", ondelete="CASCADE"), index=True
    )


class TreeLink(Base):
    """A child of a top or group node, with the sums of all entries below it.

    bound: no path below the child is less; "" for the first child. id_sum: see Sums.id. marks: the
    bits of Mark that any entry has. changed_number, changed_commit: of the newest change below.
    """

    __tablename__ = "tree_links"
    parent_id: Mapped[int] = mapped_column(
        ForeignKey("tree_nodes.id", ondelete="CASCADE"), primary_key=True
    )
    bound: Mapped[str] = mapped_column(PathText, primary_key=True)
    child_id: Mapped[int] = mapped_column(
        ForeignKey("tree_nodes.id", ondelete="CASCADE"), index=True
    )
    n_files: Mapped[int] = mapped_column(BigInteger)
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    id_sum: Mapped[bytes] = mapped_column(LargeBinary(20))
    marks: Mapped[int] = mapped_column(BigInteger)
    changed_number: Mapped[int] = mapped_column(BigInteger)
    changed_commit: Mapped[bytes] = mapped_column(LargeBinary(20))


class TreeEntry(Base):
    """Path -> file in a leaf. The commit fixes the mode.

    changed_number, changed_commit: of the revision that put the file at this path. That commit may
    have been dropped since: then the next of the branch that is left stands for it.
    """

    __tablename__ = "tree_entries"
    node_id: Mapped[int] = mapped_column(
        ForeignKey("tree_nodes.id", ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(PathText, primary_key=True)
    file_id: Mapped[int] = mapped_column(ForeignKey("files.id"), index=True)
    mode: Mapped[str] = mapped_column(String(8))  # regular | lfs
    changed_number: Mapped[int] = mapped_column(BigInteger)
    changed_commit: Mapped[bytes] = mapped_column(LargeBinary(20))


def _entries(owner: type[Revision] | type[DroppedRevision], key: str, name: str) -> Subquery:
    """A join from revisions to the entries of their trees."""
    top, group = aliased(TreeLink), aliased(TreeLink)
    return (
        select(
            owner.id.label(key),
            TreeEntry.node_id,
            TreeEntry.path,
            TreeEntry.file_id,
            TreeEntry.mode,
            TreeEntry.changed_number,
            TreeEntry.changed_commit,
        )
        .join(top, top.parent_id == owner.tree_id)
        .join(group, group.parent_id == top.child_id)
        .join(TreeEntry, TreeEntry.node_id == group.child_id)
        .subquery(name)
    )


class Entry(Base):
    """Path -> file in one revision."""

    __table__ = _entries(Revision, "revision_id", "entries")
    __mapper_args__ = {  # noqa: RUF012
        "primary_key": [__table__.c.revision_id, __table__.c.path]
    }
    revision_id: Mapped[int]
    node_id: Mapped[int]
    path: Mapped[str]
    file_id: Mapped[int]
    mode: Mapped[str]
    changed_number: Mapped[int]
    changed_commit: Mapped[bytes]


class DroppedEntry(Base):
    """Path -> file in a dropped revision."""

    __table__ = _entries(DroppedRevision, "dropped_id", "dropped_entries")
    __mapper_args__ = {  # noqa: RUF012
        "primary_key": [__table__.c.dropped_id, __table__.c.path]
    }
    dropped_id: Mapped[int]
    path: Mapped[str]
    file_id: Mapped[int]
    mode: Mapped[str]
