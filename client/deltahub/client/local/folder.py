"""The files of a local folder that a push sends."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.index import Stamp

# What tools leave in a folder and nobody means to publish.
_SKIPPED_FOLDERS = frozenset({".git", ".cache", "__pycache__"})
_SKIPPED_FILES = frozenset({".DS_Store"})


@dataclass(frozen=True)
class LocalFile:
    """A file to push. path: within the repository, with slashes."""

    path: str
    source: Path
    stamp: Stamp

    @property
    def size(self) -> int:
        return self.stamp.size


@dataclass(frozen=True)
class Folder:
    """What a folder holds. skipped: what was left out that somebody may miss, and why, by path."""

    files: tuple[LocalFile, ...]
    skipped: Mapping[str, str]


def list_folder(folder: Path) -> Folder:
    """Every regular file below, by path; .git, .cache and __pycache__ apart.

    A link to a file is followed if the file lies in the folder too, or among the blobs of the
    Hugging Face cache that the folder is a snapshot of; no other link is, so that what lies
    elsewhere on the machine is never published by accident, nor one folder many times.
    InvalidArgument when there is no such folder or a name is not UTF-8.
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
    """One file under a path of the caller's choice."""
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
