"""The entries of a revision, page by page, in memory that does not grow with their number.

Each page is read in a transaction of its own, so that nothing stays open while it is sent. That is
one list nevertheless, because the entries of a commit never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from deltahub.registry import cancellation
from deltahub.registry.catalog.entries import etag_of
from deltahub.registry.db.expressions import by_code_point
from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.registry import Registry

PAGE_ENTRIES = 1000
_PATH = by_code_point(Entry.path)


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
    """All entries in order of path (by Unicode code point), PAGE_ENTRIES at a time.

    RevisionNotFound if the revision is deleted before the end.
    """
    query = select(
        Entry.path, Entry.mode, File.sha256, File.size, File.git_blob_id, File.state
    ).join(File, File.id == Entry.file_id)
    for rows in _pages(reg, revision, query):
        yield [ListedEntry(*row) for row in rows]


def path_pages(reg: Registry, revision: Revision) -> Iterator[list[str]]:
    """All paths in the same order and pages. RevisionNotFound as for entry_pages."""
    for rows in _pages(reg, revision, select(Entry.path)):
        yield [path for (path,) in rows]


def _pages(
    reg: Registry, revision: Revision, query: Select[*tuple[Any, ...]]
) -> Iterator[list[Any]]:
    in_order = query.where(Entry.revision_id == revision.id).order_by(_PATH).limit(PAGE_ENTRIES)
    page = in_order
    while True:
        cancellation.check()
        with reg.db.read() as session:
            rows = list(session.execute(page))
            is_last = len(rows) < PAGE_ENTRIES
            if is_last:
                # Rows of a deleted revision are missing from the pages, and its id may be reused.
                now = session.get(Revision, revision.id)
                if now is None or now.commit != revision.commit:
                    raise RevisionNotFound(f"{revision.commit} has been deleted")
        yield rows
        if is_last:
            return
        page = in_order.where(_PATH > rows[-1][0])
