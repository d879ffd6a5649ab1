"""Operations that change a tree."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.visibility import readable_files
from deltahub.registry.catalog.trees.read import Tree, below
from deltahub.registry.catalog.trees.sums import HEAD, Sums, TreeFile, id_of, marks_of
from deltahub.registry.db.models import File, Repository
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import EntryNotFound, SizeMismatch
from deltahub.registry.names import LFS_BYTES, Mode, entry_mode, quoted, validate_tree
from deltahub.registry.uploads.committable import files_of_uploads, keep_uploads
from deltahub.registry.uploads.landing import upload_not_found


@dataclass(frozen=True)
class AddFile:
    """Put an uploaded file at a path; it replaces a file at that path.

    mode: regular or lfs, as the client sent it; None for that of its name and size. A file that
    stays as it is keeps its mode, too.
    """

    path: str
    sha256: str
    size: int
    mode: Mode | None = None


@dataclass(frozen=True)
class DeleteFile:
    """Remove the entry at a path, which must exist."""

    path: str


@dataclass(frozen=True)
class DeleteFolder:
    """Remove all entries below a path; there must be at least one."""

    path: str


@dataclass(frozen=True)
class DeleteEntry:
    """Remove the file at a path, or all entries below it; there must be one."""

    path: str


@dataclass(frozen=True)
class CopyFile:
    """Put a stored file that the caller may read at a path. No size is checked.

    mode: as in AddFile.
    """

    path: str
    sha256: str
    mode: Mode | None = None


Operation = AddFile | DeleteFile | DeleteFolder | DeleteEntry | CopyFile


@dataclass(frozen=True)
class Changes:
    """What operations change of a tree.

    files: path -> the new file, None where there is none any more; without paths that keep their
    file. before: the old files at these paths. restored: lost files that keep their paths, and were
    uploaded again.
    """

    files: Mapping[str, TreeFile | None]
    before: Mapping[str, TreeFile]
    restored: Sequence[TreeFile] = ()

    @property
    def added(self) -> dict[str, TreeFile]:
        """The new files."""
        return {path: file for path, file in self.files.items() if file is not None}

    def sums_after(self, sums: Sums) -> Sums:
        """n_files, n_bytes and id of the tree after the changes. sums: of the tree before."""
        added = self.added
        total = sums.id + sum(id_of(*item) for item in added.items())
        total -= sum(id_of(*item) for item in self.before.items())
        return Sums(
            sums.n_files + len(added) - len(self.before),
            sums.n_bytes + _bytes(added) - _bytes(self.before),
            total % (1 << 160),
        )


def tree_file(path: str, file: File, mode: str | None = None) -> TreeFile:
    """A file as it is put at a path. mode: None, or of a large file, for that of name and size."""
    if mode is None or file.size >= LFS_BYTES:
        mode = entry_mode(path, file.size)  # a large file has no id of git
    return TreeFile(
        file_id=file.id,
        mode=mode,
        sha256=file.sha256,
        size=file.size,
        git_blob_id=file.git_blob_id,
        state=file.state,
    )


def apply_operations(
    session: WriteSession,
    caller: Caller,
    repository: Repository,
    tree: Tree,
    operations: Sequence[Operation],
) -> Changes:
    """What the operations change of the tree.

    Adds rows for files that are new to the repository's domain. A lost file that was uploaded again
    is read from its upload. Raises EntryNotFound, UploadNotFound, SizeMismatch, and InvalidPath if
    the paths cannot be those of one tree.
    """
    before = tree.at(operation.path for operation in operations)
    files = _files(session, caller, repository, _changed(before, operations))
    after: dict[str, TreeFile | None] = {}
    for operation in operations:
        cancellation.check()
        path = operation.path
        if isinstance(operation, DeleteFile):
            if after.get(path, before.get(path)) is None:
                raise EntryNotFound(f"there is no file {quoted(path)} to delete")
            after[path] = None
        elif isinstance(operation, DeleteEntry):
            is_file = after.get(path, before.get(path)) is not None
            inside = [path] if is_file else _inside(tree, path, before, after)
            if not inside:
                raise EntryNotFound(f"there is no file and no folder {quoted(path)} to delete")
            after.update(dict.fromkeys(inside))
        elif isinstance(operation, DeleteFolder):
            inside = _inside(tree, path, before, after)
            if not inside:
                raise EntryNotFound(f"there is no folder {quoted(path)} to delete")
            after.update(dict.fromkeys(inside))
        else:
            after[path] = _put(operation, before.get(path), files)
    kept = {path: file for path, file in after.items() if before.get(path) == file}
    restored = [
        file
        for path, file in kept.items()
        if file is not None and before[path].is_lost and file.is_waiting
    ]
    changed = {path: file for path, file in after.items() if path not in kept}
    old = {path: before[path] for path in changed if path in before}
    changes = Changes(changed, old, restored)
    _check_paths(tree, changes)
    return changes


def _put(
    operation: AddFile | CopyFile, old: TreeFile | None, files: Mapping[str, File]
) -> TreeFile:
    path = operation.path
    if old is not None and old.sha256 == operation.sha256 and not old.is_lost:
        file = old
    elif operation.sha256 in files:
        file = tree_file(path, files[operation.sha256], operation.mode)
    else:
        raise upload_not_found(operation.sha256)
    if isinstance(operation, AddFile) and file.size != operation.size:
        raise SizeMismatch(
            f"{quoted(path)}: {operation.sha256} has {file.size} bytes, not {operation.size}"
        )
    return file


def _inside(
    tree: Tree,
    folder: str,
    before: dict[str, TreeFile],
    after: Mapping[str, TreeFile | None],
) -> list[str]:
    """The paths that are now below a folder. Those of the tree are added to `before`."""
    first, end = below(folder)
    there = dict(tree.between(first, end))
    before |= there
    inside = [path for path in there if after.get(path, there[path]) is not None]
    new = (path for path, file in after.items() if file is not None and path not in there)
    return inside + [path for path in new if first <= path < end]


def _check_paths(tree: Tree, changes: Changes) -> None:
    """InvalidPath if the paths of the changed tree cannot be those of one revision.

    Looks only at paths near those that are new: deletions cannot make a tree wrong, and they may
    mend one from before today's rule.
    """
    new = sorted(path for path in changes.added if path not in changes.before)
    folders = {folder: path for path in new for folder in _folders_of(path)}
    there = tree.at(folders)
    for folder, path in folders.items():
        if changes.files.get(folder, there.get(folder)) is not None:
            validate_tree([folder, path])
    for path in new:
        for inside, file in tree.between(*below(path)):
            if changes.files.get(inside, file) is not None:
                validate_tree([path, inside])
    marks = reduce(or_, map(marks_of, new), tree.sums.marks)
    if new and marks & HEAD:  # git looks at what lies beside it: see codecs/files/paths.py
        kept = (path for path, _ in tree.between("") if path not in changes.files)
        validate_tree([*kept, *changes.added])


def _folders_of(path: str) -> Iterator[str]:
    names = path.split("/")
    for end in range(1, len(names)):
        yield "/".join(names[:end])


def _bytes(files: Mapping[str, TreeFile]) -> int:
    return sum(file.size for file in files.values())


def _changed(before: Mapping[str, TreeFile], operations: Sequence[Operation]) -> set[str]:
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
    uploads = keep_uploads(session, caller, hashes)
    known = [sha256 for sha256 in hashes if sha256 not in uploads]
    found = readable_files(session, caller, repository, known)
    return found | files_of_uploads(session, repository.domain_id, uploads)
