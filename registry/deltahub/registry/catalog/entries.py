"""The entries of revisions: paths, modes and files."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, func, select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Entry, File, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.names import quoted


@dataclass(frozen=True)
class EntryInfo:
    """One path of a revision. `file`: the row when it was read; its state may change later."""

    path: str
    mode: str  # regular | lfs
    file: File

    @property
    def etag(self) -> str:
        """The git blob id of a regular file, the SHA-256 of an LFS file; never changes."""
        return etag_of(self.mode, self.file.sha256, self.file.git_blob_id)


@dataclass(frozen=True)
class LargeFile:
    """An LFS file of a repository: the first of its paths, and when a revision first listed it."""

    file: File
    path: str
    added_at: datetime


def etag_of(mode: str, sha256: str, git_blob_id: str | None) -> str:
    """The ETag that EntryInfo.etag gives, from the columns of an entry and its file."""
    if mode == "lfs":
        return sha256
    assert git_blob_id is not None, "verified together with the SHA-256"
    return git_blob_id


def list_entries(session: ReadSession, revision: Revision) -> list[EntryInfo]:
    """All entries in order of path (by Unicode code point)."""
    entries = [EntryInfo(*row) for row in session.execute(_entries(revision))]
    # Sorted here, because the collation of the database may differ.
    return sorted(entries, key=lambda entry: entry.path)


def entries_at(
    session: ReadSession, revision: Revision, paths: Iterable[str]
) -> dict[str, EntryInfo]:
    """Path -> entry, for the given paths that exist in the revision."""
    found: dict[str, EntryInfo] = {}
    for batch in batches(paths):
        rows = session.execute(_entries(revision).where(Entry.path.in_(batch)))
        found.update((row[0], EntryInfo(*row)) for row in rows)
    return found


def find_entry(session: ReadSession, revision: Revision, path: str) -> EntryInfo:
    """The entry at a path; raises EntryNotFound."""
    row = session.execute(_entries(revision).where(Entry.path == path)).one_or_none()
    if row is None:
        raise EntryNotFound(f"revision {revision.commit} has no file {quoted(path)}")
    return EntryInfo(*row)


def sizes_in_repository(
    session: ReadSession, repository: Repository, hashes: Collection[str]
) -> dict[str, int]:
    """SHA-256 -> size, for the given hashes whose files any revision of the repository lists."""
    found: dict[str, int] = {}
    for batch in batches(hashes):
        query = (
            select(File.sha256, File.size)
            .join(Entry, Entry.file_id == File.id)
            .join(Revision, Revision.id == Entry.revision_id)
            .where(Revision.repository_id == repository.id, File.sha256.in_(batch))
        )
        found.update((sha256, size) for sha256, size in session.execute(query))
    return found


def large_files(session: ReadSession, repository: Repository) -> list[LargeFile]:
    """The LFS files of all revisions of the repository, each once."""
    query = (
        select(File, func.min(Entry.path), func.min(Revision.created_at))
        .join(Entry, Entry.file_id == File.id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(Revision.repository_id == repository.id, Entry.mode == "lfs")
        .group_by(File.id)
        .order_by(File.id)
    )
    return [LargeFile(*row) for row in session.execute(query)]


def used_storage(session: ReadSession, repository: Repository) -> int:
    """Uncompressed bytes of the files of all revisions of the repository; each file counts once."""
    files = (
        select(File.id, File.size)
        .join(Entry, Entry.file_id == File.id)
        .join(Revision, Revision.id == Entry.revision_id)
        .where(Revision.repository_id == repository.id)
        .distinct()
        .subquery()
    )
    return session.scalars(select(total(files.c.size))).one()


def _entries(revision: Revision) -> Select[str, str, File]:
    return (
        select(Entry.path, Entry.mode, File)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id)
    )
