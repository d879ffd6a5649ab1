"""The files of a local folder that a push sends."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.index import Stamp

# Files of tools that nobody means to publish. A hub takes none of these folders but the last.
_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", ".bzr", ".jj", ".cache", "__pycache__"})
_SKIPPED_FILES = frozenset({".DS_Store"})


@dataclass(frozen=True)
class LocalFile:
    """A file to push. path: its path in the repository, with slashes."""

    path: str
    source: Path
    stamp: Stamp

    @property
    def size(self) -> int:
        return self.stamp.size


@dataclass(frozen=True)
class Folder:
    """The files of a folder. skipped: path -> reason, of files that a user may miss."""

    files: tuple[LocalFile, ...]
    skipped: Mapping[str, str]


def list_folder(folder: Path) -> Folder:
    """Every regular file below the folder, by path, but for the folders of tools.

    A link to a file is followed if the file lies in the folder, or among the blobs of the Hugging
    Face cache that the folder is a snapshot of. No other link is followed, so that no file from
    elsewhere is published by accident and no folder twice.
    InvalidArgument when there is no such folder, a link's file is missing or a name is not UTF-8.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder")
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    files: list[LocalFile] = []
    skipped: dict[str, str] = {}
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in folders:
            if Path(parent, name).is_symlink():
                skipped[_path(root, Path(parent, name))] = "a link to a folder"
        for name in names:
            if name in _SKIPPED_FILES:
                continue
            path = _path(root, Path(parent, name))
            source = Path(parent, name).resolve()
            if not any(source.is_relative_to(allowed) for allowed in roots):
                skipped[path] = "a link that leaves the folder"
            elif source.is_file():
                files.append(LocalFile(path, source, Stamp.of(source.stat())))
            elif not source.exists():
                raise InvalidArgument(f"{path} is a link to a file that does not exist")
            else:
                skipped[path] = "neither a file nor a folder"
    return Folder(tuple(sorted(files, key=lambda file: file.path)), dict(sorted(skipped.items())))


def single_file(source: Path, path: str) -> LocalFile:
    """One file, to push under the given path. InvalidArgument if it is not a file."""
    if not source.is_file():
        raise InvalidArgument(f"{source} is not a file")
    return LocalFile(path, source.resolve(), Stamp.of(source.stat()))


def _path(root: Path, name: Path) -> str:
    path = name.relative_to(root).as_posix()
    try:
        path.encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgument(f"the name {path!a} is not UTF-8: rename the file") from exc
    return path
