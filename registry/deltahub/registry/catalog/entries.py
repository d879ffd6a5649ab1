"""The entries of revisions: paths, modes and files."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Select, func, select

from deltahub.registry import cancellation
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Entry, File, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.names import quoted
from deltahub.registry.packs.block_cache import ByteCache

# (repository, when it was created, its newest commit, their number) -> bytes. A revision never
# changes, so the key names what was summed up. Limit: about 10,000 repositories.
_KNOWN: Final[ByteCache[tuple[int, datetime, str, int], int]] = ByteCache(4 << 20)
_KEY_BYTES: Final = 400


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

    @property
    def sha256(self) -> str:
        return self.file.sha256

    @property
    def size(self) -> int:
        return self.file.size


@dataclass(frozen=True)
class LargeFile:
    """An LFS file of a repository: the first of its paths, and when a revision first listed it."""

    file: File
    path: str
    added_at: datetime


@dataclass(frozen=True)
class UsedStorage:
    """The uncompressed bytes that a repository uses. n_read: entries that were summed up now."""

    n_bytes: int
    n_read: int


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


def used_storage(session: ReadSession, repository: Repository) -> UsedStorage:
    """Bytes of the files of all revisions of the repository. Costs a query for each new commit."""
    own = Revision.repository_id == repository.id
    newest, n_revisions = session.execute(
        select(func.max(Revision.id), func.count()).where(own)
    ).one()
    if newest is None:
        return UsedStorage(0, 0)
    key = (
        repository.id,
        repository.created_at,
        session.get_one(Revision, newest).commit,
        n_revisions,
    )
    known = _KNOWN.get(key)
    if known is not None:
        return UsedStorage(known, 0)
    cancellation.check()
    files = (
        select(Entry.file_id, func.count().label("uses"))
        .join(Revision, Revision.id == Entry.revision_id)
        .where(own)
        .group_by(Entry.file_id)
        .subquery()
    )
    n_bytes, n_read = session.execute(
        select(total(File.size), total(files.c.uses)).join(files, files.c.file_id == File.id)
    ).one()
    _KNOWN.put(key, n_bytes, _KEY_BYTES)
    return UsedStorage(n_bytes, n_read)


def _entries(revision: Revision) -> Select[str, str, File]:
    return (
        select(Entry.path, Entry.mode, File)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision.id)
    )
