"""The tree of a revision, and what operations make of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select

from deltahub.registry.db.models import File, Landing, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.entries import list_entries
from deltahub.registry.errors import EntryNotFound, SizeMismatch
from deltahub.registry.landing import upload_not_found
from deltahub.registry.locations import batches
from deltahub.registry.paths import entry_mode, quoted
from deltahub.registry.permissions import Caller, readable_files

_CHUNK = 5000


@dataclass(frozen=True)
class AddFile:
    """Put an uploaded file at a path, in place of what is there."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class DeleteFile:
    """Remove the entry at a path, which must be there."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """Remove all entries below a path, at least one."""

    path: str


@dataclass(frozen=True)
class CopyFile:
    """Put a file that the caller may read, of whatever size, at a path: its bytes are here."""

    path: str
    sha256: str


Operation = AddFile | DeleteFile | DeleteFolder | CopyFile


@dataclass(frozen=True)
class Node:
    """What a tree holds at a path."""

    file_id: int
    mode: str
    sha256: str
    size: int
    is_ingested: bool


Tree = dict[str, Node]


def tree_of(session: ReadSession, revision: Revision | None) -> Tree:
    """What a revision holds; nothing for none."""
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
        is_ingested=file.state == "ingested",
    )


def apply_operations(
    session: WriteSession,
    caller: Caller,
    repository: Repository,
    before: Tree,
    operations: Sequence[Operation],
) -> Tree:
    """The tree after the operations; `before` stays as it is.

    Makes rows of files that are new to the repository's domain. EntryNotFound, UploadNotFound,
    SizeMismatch.
    """
    tree = dict(before)
    files = _files(session, caller, repository, _changed(before, operations))
    for operation in operations:
        path = operation.path
        if isinstance(operation, DeleteFile):
            if tree.pop(path, None) is None:
                raise EntryNotFound(f"there is no file {quoted(path)} to delete")
            continue
        if isinstance(operation, DeleteFolder):
            inside = [other for other in tree if other.startswith(f"{path}/")]
            if not inside:
                raise EntryNotFound(f"there is no folder {quoted(path)} to delete")
            for other in inside:
                del tree[other]
            continue
        old = before.get(path)
        if old is not None and old.sha256 == operation.sha256:
            node = old
        elif operation.sha256 in files:
            node = _node(path, files[operation.sha256])
        else:
            raise upload_not_found(operation.sha256)
        if isinstance(operation, AddFile) and node.size != operation.size:
            raise SizeMismatch(
                f"{quoted(path)}: {operation.sha256} has {node.size} bytes, not {operation.size}"
            )
        tree[path] = node
    return tree


def complete_uploads(
    session: ReadSession, caller: Caller, hashes: Collection[str]
) -> dict[str, Landing]:
    """The caller's own uploads, whole and proved, among the asked."""
    found: dict[str, Landing] = {}
    ordered = sorted(hashes)
    for i in range(0, len(ordered), _CHUNK):
        query = select(Landing).where(
            Landing.user_id == caller.user_id,
            Landing.state == "complete",
            Landing.sha256.in_(ordered[i : i + _CHUNK]),
        )
        found.update((upload.sha256, upload) for upload in session.scalars(query))
    return found


def files_of_uploads(
    session: WriteSession, domain_id: int, uploads: Mapping[str, Landing]
) -> dict[str, File]:
    """SHA-256 -> the domain's file of each upload, made if absent; a few statements for all."""
    found = _files_of(session, domain_id, uploads)
    for file in found.values():
        if file.state == "proving":
            # The bytes themselves are here and proved; a recipe for them is not needed any more.
            upload = uploads[file.sha256]
            file.state, file.landing_id = "landed", upload.id
            file.size, file.git_blob_id = upload.size, upload.git_blob_id
    session.flush()
    new = [sha256 for sha256 in uploads if sha256 not in found]
    for batch in batches(new):
        # Not as objects: SQLite would be given one at a time, for the sake of their ids.
        rows = [
            {
                "domain_id": domain_id, "sha256": sha256, "state": "landed",
                "landing_id": uploads[sha256].id, "size": uploads[sha256].size,
                "git_blob_id": uploads[sha256].git_blob_id,
            }
            for sha256 in batch
        ]  # fmt: skip
        session.execute(insert(File), rows)
    return found | _files_of(session, domain_id, new)


def _files_of(session: ReadSession, domain_id: int, hashes: Iterable[str]) -> dict[str, File]:
    found: dict[str, File] = {}
    for batch in batches(hashes):
        query = select(File).where(File.domain_id == domain_id, File.sha256.in_(batch))
        found.update((file.sha256, file) for file in session.scalars(query))
    return found


def _changed(before: Tree, operations: Sequence[Operation]) -> set[str]:
    """What is put where something else is."""
    return {
        operation.sha256
        for operation in operations
        if isinstance(operation, AddFile | CopyFile)
        and (operation.path not in before or before[operation.path].sha256 != operation.sha256)
    }


def _files(
    session: WriteSession, caller: Caller, repository: Repository, hashes: Collection[str]
) -> dict[str, File]:
    """SHA-256 -> file, of uploads of the caller's and of what they may read."""
    uploads = complete_uploads(session, caller, hashes)
    known = [sha256 for sha256 in hashes if sha256 not in uploads]
    found = readable_files(session, caller, repository, known)
    return found | files_of_uploads(session, repository.domain_id, uploads)
