"""The entries of revisions: paths, modes and files."""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Row, bindparam, func, select

from deltahub.registry import cancellation
from deltahub.registry.catalog.history import ancestors
from deltahub.registry.catalog.trees.read import LEAF_OF_PATH, MAX_LEAVES, Tree
from deltahub.registry.catalog.trees.sums import Change, etag_of
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Ref, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.db.tree_files import files_of, is_listed_by, leaves_of, trees_of_repository
from deltahub.registry.errors import EntryNotFound
from deltahub.registry.names import quoted
from deltahub.registry.packs.block_cache import ByteCache

# (repository, when it was created, its newest commit, their number) -> bytes. A revision never
# changes, so the key names what was summed up. Limit: about 10,000 repositories.
_KNOWN: Final[ByteCache[tuple[int, datetime, str, int], int]] = ByteCache(4 << 20)
_KEY_BYTES: Final = 400
# Branches and tags that are searched for a large file.
_MOST_REFS: Final = 100


@dataclass(frozen=True)
class EntryInfo:
    """One path of a revision. `file`: the row when it was read; its state may change later."""

    path: str
    mode: str  # regular | lfs
    file: File
    changed: Change

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
    """An LFS file of a repository: the first of its paths, and when a revision first listed it.

    ref: a branch or tag that leads to it, as refs/heads/NAME: main before others. None if there are
    too many of them to look at all.
    """

    file: File
    path: str
    added_at: datetime
    ref: str | None


@dataclass(frozen=True)
class UsedStorage:
    """The uncompressed bytes that a repository uses. n_read: entries that were summed up now."""

    n_bytes: int
    n_read: int


def list_entries(session: ReadSession, revision: Revision) -> list[EntryInfo]:
    """All entries in order of path (by Unicode code point)."""
    found: list[EntryInfo] = []
    for leaf_ids in Tree(session, revision.tree_id).leaf_ids(n_at_first=MAX_LEAVES):
        query = _ENTRIES.where(TreeEntry.node_id.in_(leaf_ids)).order_by(TreeEntry.path)
        found += map(_entry, session.execute(query))
    return found


def entries_at(
    session: ReadSession, revision: Revision, paths: Iterable[str]
) -> dict[str, EntryInfo]:
    """Path -> entry, for the given paths that exist in the revision."""
    found: dict[str, EntryInfo] = {}
    inside = Tree(session, revision.tree_id).leaves_of(paths)
    for leaf_ids in batches(inside, MAX_LEAVES):
        wanted = [path for leaf_id in leaf_ids for path in inside[leaf_id]]
        for batch in batches(wanted):
            rows = session.execute(_IN_LEAVES, {"leaves": leaf_ids, "paths": batch})
            found |= {entry.path: entry for entry in map(_entry, rows)}
    return found


def find_entry(session: ReadSession, revision: Revision, path: str) -> EntryInfo:
    """The entry at a path; raises EntryNotFound."""
    row = None
    if revision.tree_id is not None:
        row = session.execute(_AT, {"tree": revision.tree_id, "path": path}).one_or_none()
    if row is None:
        raise EntryNotFound(f"revision {revision.commit} has no file {quoted(path)}")
    return _entry(row)


def sizes_in_repository(
    session: ReadSession, repository: Repository, hashes: Collection[str]
) -> dict[str, int]:
    """SHA-256 -> size, for the given hashes whose files any revision of the repository lists."""
    found: dict[str, int] = {}
    for batch in batches(hashes):
        query = select(File.sha256, File.size).where(
            File.sha256.in_(batch), is_listed_by(repository.id)
        )
        found.update((sha256, size) for sha256, size in session.execute(query))
    return found


def large_files(session: ReadSession, repository: Repository) -> list[LargeFile]:
    """The LFS files of all revisions of the repository, each once."""
    leaves = leaves_of(trees_of_repository(repository.id))
    rows = session.execute(
        select(TreeEntry.file_id, func.min(TreeEntry.path), func.min(TreeEntry.changed_number))
        .where(TreeEntry.node_id.in_(leaves), TreeEntry.mode == "lfs")
        .group_by(TreeEntry.file_id)
    )
    first = {file_id: (path, number) for file_id, path, number in rows}
    refs = _refs_of(session, repository, set(first))
    dates = session.execute(
        select(Revision.number, func.min(Revision.created_at))
        .where(Revision.repository_id == repository.id)
        .group_by(Revision.number)
        .order_by(Revision.number)
    ).all()
    found: list[LargeFile] = []
    for batch in batches(sorted(first)):
        query = select(File).where(File.id.in_(batch)).order_by(File.id)
        for file in session.scalars(query):
            path, number = first[file.id]
            # If this commit was dropped, the next one that is left has the file.
            index = bisect_left(dates, number, key=lambda row: row[0])
            added_at = dates[min(index, len(dates) - 1)][1]
            found.append(LargeFile(file, path, added_at, refs.get(file.id)))
    return found


def _refs_of(session: ReadSession, repository: Repository, files: set[int]) -> dict[int, str]:
    """File id -> the first ref with a revision that lists it."""
    query = (
        select(Ref.kind, Ref.name, Revision)
        .join(Revision, Revision.id == Ref.revision_id)
        .where(Ref.repository_id == repository.id, Ref.kind.in_(("branch", "tag")))
        .order_by(Ref.name != "main", Ref.kind, Ref.name)
        .limit(_MOST_REFS)
    )
    found: dict[int, str] = {}
    for kind, name, head in session.execute(query).all():
        cancellation.check()
        left = files - found.keys()
        if not left:
            break
        folder = "heads" if kind == "branch" else "tags"
        for batch in batches([each.id for each in ancestors(session, head)]):
            trees = select(Revision.tree_id).where(
                Revision.id.in_(batch), Revision.tree_id.is_not(None)
            )
            listed = select(TreeEntry.file_id).where(
                TreeEntry.node_id.in_(leaves_of(trees)), TreeEntry.mode == "lfs"
            )
            reached = left.intersection(session.scalars(listed))
            found |= dict.fromkeys(reached, f"refs/{folder}/{name}")
    return found


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
    files = files_of(trees_of_repository(repository.id))
    n_bytes, n_read = session.execute(
        select(total(File.size), func.count()).where(File.id.in_(files))
    ).one()
    _KNOWN.put(key, n_bytes, _KEY_BYTES)
    return UsedStorage(n_bytes, n_read)


def _entry(row: Row[str, str, File, int, bytes]) -> EntryInfo:
    path, mode, file, number, commit = row
    return EntryInfo(path, mode, file, Change(number, commit))


_ENTRIES: Final = select(
    TreeEntry.path, TreeEntry.mode, File, TreeEntry.changed_number, TreeEntry.changed_commit
).join(File, File.id == TreeEntry.file_id)
_AT: Final = _ENTRIES.where(TreeEntry.node_id == LEAF_OF_PATH, TreeEntry.path == bindparam("path"))
_IN_LEAVES: Final = _ENTRIES.where(
    TreeEntry.node_id.in_(bindparam("leaves", expanding=True)),
    TreeEntry.path.in_(bindparam("paths", expanding=True)),
)
