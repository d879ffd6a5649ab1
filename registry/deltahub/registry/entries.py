"""What a revision lists: paths, and the files behind them."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Select, select

from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.locations import batches
from deltahub.registry.paths import quoted


@dataclass(frozen=True)
class EntryInfo:
    """One path of a revision. `file` is the row as it was read; its state may move on."""

    path: str
    mode: str  # regular | lfs
    file: File

    @property
    def etag(self) -> str:
        """The git blob id of a regular file, the SHA-256 of an LFS file; never changes."""
        return etag_of(self.mode, self.file.sha256, self.file.git_blob_id)


def etag_of(mode: str, sha256: str, git_blob_id: str | None) -> str:
    """As EntryInfo.etag, of columns."""
    if mode == "lfs":
        return sha256
    assert git_blob_id is not None, "proved together with the SHA-256"
    return git_blob_id


def list_entries(session: ReadSession, revision: Revision) -> list[EntryInfo]:
    """All entries in order of path (by Unicode code point)."""
    entries = [EntryInfo(*row) for row in session.execute(_entries(revision))]
    # Not left to the database, whose collation is its own.
    return sorted(entries, key=lambda entry: entry.path)


def entries_at(
    session: ReadSession, revision: Revision, paths: Iterable[str]
) -> dict[str, EntryInfo]:
    """Path -> entry, of those paths that have one."""
    found: dict[str, EntryInfo] = {}
    for batch in batches(paths):
        rows = session.execute(_entries(revision).where(Entry.path.in_(batch)))
        found.update((row[0], EntryInfo(*row)) for row in rows)
    return found


def find_entry(session: ReadSession, revision: Revision, path: str) -> EntryInfo:
    """The entry at a path; EntryNotFound."""
    row = session.execute(_entries(revision).where(Entry.path == path)).one_or_none()
    if row is None:
        raise EntryNotFound(f"revision {revision.commit} has no file {quoted(path)}")
    return EntryInfo(*row)


def _entries(revision: Revision) -> Select[str, str, File]:
    return (
        select(Entry.path, Entry.mode, File)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id)
    )
