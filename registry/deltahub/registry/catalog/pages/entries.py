"""The entries of a revision, page by page, in memory that does not grow with their number.

Each page is read in a transaction of its own, so that nothing stays open while it is sent. That is
one list nevertheless, because the entries of a commit never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, select

from deltahub.registry import cancellation
from deltahub.registry.catalog.trees.read import MAX_LEAVES, Tree
from deltahub.registry.catalog.trees.sums import etag_of
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.registry import Registry

# A code point below all those that a path may contain.
_MIN_CHARACTER: Final = "\x01"


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """One path of a revision, and the file there."""

    path: str
    mode: str  # regular | lfs
    sha256: str
    size: int
    git_blob_id: str | None
    state: str

    @property
    def etag(self) -> str:
        """The git blob id of a regular file, the SHA-256 of an LFS file; never changes."""
        return etag_of(self.mode, self.sha256, self.git_blob_id)


def entry_pages(reg: Registry, revision: Revision) -> Iterator[list[ListedEntry]]:
    """All entries in order of path (by Unicode code point), some of them at a time.

    RevisionNotFound if the revision is deleted before the end.
    """
    query = select(
        TreeEntry.path, TreeEntry.mode, File.sha256, File.size, File.git_blob_id, File.state
    ).join(File, File.id == TreeEntry.file_id)
    for rows in _pages(reg, revision, query):
        yield [ListedEntry(*row) for row in rows]


def path_pages(reg: Registry, revision: Revision) -> Iterator[list[str]]:
    """All paths in the same order and pages. RevisionNotFound as for entry_pages."""
    for rows in _pages(reg, revision, select(TreeEntry.path)):
        yield [path for (path,) in rows]


def _pages(
    reg: Registry, revision: Revision, query: Select[*tuple[Any, ...]]
) -> Iterator[list[Any]]:
    after = ""
    while True:
        cancellation.check()
        with reg.db.read() as session:
            # The nodes of a deleted revision are gone, and its id may be given again.
            now = session.get(Revision, revision.id)
            if now is None or now.commit != revision.commit:
                raise RevisionNotFound(f"{revision.commit} has been deleted")
            tree = Tree(session, now.tree_id)
            leaf_ids = next(tree.leaf_ids(after, n_at_first=MAX_LEAVES), [])
            in_leaves = TreeEntry.node_id.in_(leaf_ids), TreeEntry.path >= after
            rows = list(session.execute(query.where(*in_leaves).order_by(TreeEntry.path)))
        yield rows
        if not rows:
            return
        after = rows[-1][0] + _MIN_CHARACTER
