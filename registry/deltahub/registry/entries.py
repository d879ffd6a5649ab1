"""What a revision lists: paths, and the files behind them."""

from dataclasses import dataclass

from sqlalchemy import Select, select

from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import EntryNotFound
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
        if self.mode == "lfs":
            return self.file.sha256
        assert self.file.git_blob_id is not None, "proved together with the SHA-256"
        return self.file.git_blob_id


def list_entries(session: ReadSession, revision: Revision) -> list[EntryInfo]:
    """All entries in order of path (by Unicode code point)."""
    rows = session.execute(_entries(revision))
    entries = [EntryInfo(entry.path, entry.mode, file) for entry, file in rows]
    # Not left to the database, whose collation is its own.
    return sorted(entries, key=lambda entry: entry.path)


def find_entry(session: ReadSession, revision: Revision, path: str) -> EntryInfo:
    """The entry at a path; EntryNotFound."""
    row = session.execute(_entries(revision).where(Entry.path == path)).one_or_none()
    if row is None:
        raise EntryNotFound(f"revision {revision.commit} has no file {quoted(path)}")
    entry, file = row
    return EntryInfo(entry.path, entry.mode, file)


def _entries(revision: Revision) -> Select[Entry, File]:
    return (
        select(Entry, File)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id)
    )
