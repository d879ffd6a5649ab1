"""The tree of a revision, and operations that change it."""

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.db.models import File, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import EntryNotFound, SizeMismatch
from deltahub.registry.names import entry_mode, quoted
from deltahub.registry.uploads.committable import complete_uploads, files_of_uploads
from deltahub.registry.uploads.landing import upload_not_found


@dataclass(frozen=True)
class AddFile:
    """Put an uploaded file at a path; it replaces a file at that path."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class DeleteFile:
    """Remove the entry at a path, which must exist."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """Remove all entries below a path; there must be at least one."""

    path: str


@dataclass(frozen=True)
class CopyFile:
    """Put a stored file that the caller may read at a path. No size is checked."""

    path: str
    sha256: str


Operation = AddFile | DeleteFile | DeleteFolder | CopyFile


@dataclass(frozen=True)
class Node:
    """The file and mode at a path of a tree. state: of the file, when the tree was read."""

    file_id: int
    mode: str
    sha256: str
    size: int
    state: str = field(compare=False)

    @property
    def is_waiting(self) -> bool:
        """Whether an ingest has to store the file."""
        return self.state == "landed"

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"


Tree = dict[str, Node]


def tree_of(session: ReadSession, revision: Revision | None) -> Tree:
    """The tree of a revision; empty for None."""
    if revision is None:
        return {}
    return {entry.path: _node(entry.path, entry.file, entry.mode)
            for entry in list_entries(session, revision)}  # fmt: skip


def _node(path: str, file: File, mode: str | None = None) -> Node:
    return Node(
        file_id=file.id,
        mode=mode or entry_mode(path, file.size),
        sha256=file.sha256,
        size=file.size,
        state=file.state,
    )


def apply_operations(
    session: WriteSession,
    caller: Caller,
    repository: Repository,
    before: Tree,
    operations: Sequence[Operation],
) -> Tree:
    """The tree after the operations; `before` stays as it is.

    Adds rows for files that are new to the repository's domain. A lost file that was uploaded again
    is read from its upload. Raises EntryNotFound, UploadNotFound and SizeMismatch.
    """
    tree = dict(before)
    files = _files(session, caller, repository, _changed(before, operations))
    # Sorted, so that deleting a folder needs no walk over the whole tree.
    deletes_folders = any(isinstance(operation, DeleteFolder) for operation in operations)
    paths = sorted(tree) if deletes_folders else []
    for operation in operations:
        cancellation.check()
        path = operation.path
        if isinstance(operation, DeleteFile):
            if tree.pop(path, None) is None:
                raise EntryNotFound(f"there is no file {quoted(path)} to delete")
            continue
        if isinstance(operation, DeleteFolder):
            inside = [other for other in _take_folder(paths, path) if other in tree]
            if not inside:
                raise EntryNotFound(f"there is no folder {quoted(path)} to delete")
            for other in inside:
                del tree[other]
            continue
        old = before.get(path)
        if old is not None and old.sha256 == operation.sha256 and not old.is_lost:
            node = old
        elif operation.sha256 in files:
            node = _node(path, files[operation.sha256])
        else:
            raise upload_not_found(operation.sha256)
        if isinstance(operation, AddFile) and node.size != operation.size:
            raise SizeMismatch(
                f"{quoted(path)}: {operation.sha256} has {node.size} bytes, not {operation.size}"
            )
        if deletes_folders and path not in tree:
            insort(paths, path)
        tree[path] = node
    return tree


def _take_folder(paths: list[str], folder: str) -> list[str]:
    """Remove the paths below a folder from a sorted list, and return them."""
    # "0" is the character after "/".
    first, end = bisect_left(paths, f"{folder}/"), bisect_left(paths, f"{folder}0")
    inside = paths[first:end]
    del paths[first:end]
    return inside


def _changed(before: Tree, operations: Sequence[Operation]) -> set[str]:
    """SHA-256 of each file that an operation puts at a new path, or in place of another or lost."""
    return {
        operation.sha256
        for operation in operations
        if isinstance(operation, AddFile | CopyFile)
        and (
            (old := before.get(operation.path)) is None
            or old.sha256 != operation.sha256
            or old.is_lost
        )
    }


def _files(
    session: WriteSession, caller: Caller, repository: Repository, hashes: Collection[str]
) -> dict[str, File]:
    """SHA-256 -> file, for the caller's uploads and the stored files that the caller may read."""
    uploads = complete_uploads(session, caller, hashes)
    known = [sha256 for sha256 in hashes if sha256 not in uploads]
    found = readable_files(session, caller, repository, known)
    return found | files_of_uploads(session, repository.domain_id, uploads)
