"""The Hugging Face cache layout: blobs by ETag, snapshots of links, refs by name.

models--NAMESPACE--NAME/blobs/<etag>, snapshots/<commit>/<path> -> ../../blobs/<etag>,
refs/<revision>. Files that other tools wrote there are used, and other tools find ours.
"""

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from deltahub.client.errors import BadResponse, InvalidArgument
from deltahub.client.local.paths import make_folders, sync_folder
from deltahub.client.names import path_problem

# A commit, a git blob id or a SHA-256. A hub names them, and files get these names.
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def hf_cache_folder() -> Path:
    """HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return Path(os.path.expandvars(chosen)).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "huggingface" / "hub"


def checked_path(path: str) -> PurePosixPath:
    """A repository's path. BadResponse if it breaks the rule of docs/paths.md."""
    problem = path_problem(path)
    if problem is not None:
        raise BadResponse(f"the hub named a file {path!r}, which {problem}")
    return PurePosixPath(path)


class RepositoryCache:
    """One repository in the Hugging Face cache."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._folder = folder or hf_cache_folder()
        self._name = "models--" + name.replace("/", "--")
        self.root = self._folder / self._name

    def blob(self, etag: str) -> Path:
        if not _HASH.fullmatch(etag):
            raise BadResponse(f"the hub sent {etag!r} as an ETag")
        return self.root / "blobs" / etag

    def snapshot(self, commit: str) -> Path:
        if not _HASH.fullmatch(commit):
            raise BadResponse(f"the hub sent {commit!r} as a commit")
        return self.root / "snapshots" / commit

    def lock_path(self, etag: str) -> Path:
        """The lock file that huggingface_hub uses for the same blob."""
        return self._folder / ".locks" / self._name / f"{etag}.lock"

    def link(self, commit: str, path: str, etag: str) -> Path:
        """Makes snapshots/<commit>/<path> a relative link to the blob, and returns its path."""
        name = self.snapshot(commit) / checked_path(path)
        make_folders(self.root, name.parent)
        target = os.path.relpath(self.blob(etag), name.parent)
        if name.is_symlink() and os.readlink(name) == target:
            return name
        # Created under another name first, so that a reader always finds the old or the new link.
        fd, temporary = tempfile.mkstemp(dir=name.parent, prefix=".link-")
        os.close(fd)
        os.unlink(temporary)
        os.symlink(target, temporary)
        os.replace(temporary, name)
        return name

    def ref_path(self, revision: str, commit: str) -> Path | None:
        """refs/<revision>; None if the revision is the commit's id or the start of it.

        InvalidArgument if no file can be named so.
        """
        if commit.startswith(revision) and len(revision) >= 7:
            return None
        problem = path_problem(revision)
        if problem is not None:
            raise InvalidArgument(f"{revision!r} is not the name of a revision: it {problem}")
        return self.root / "refs" / revision

    def set_ref(self, revision: str, commit: str) -> None:
        """Writes refs/<revision>, unless the revision is the commit's id or the start of it."""
        name = self.ref_path(revision, commit)
        if name is None:
            return
        make_folders(self.root, name.parent)
        if name.exists() and name.read_text() == commit:
            return
        fd, temporary = tempfile.mkstemp(dir=name.parent, prefix=".ref-")
        with os.fdopen(fd, "w") as file:
            file.write(commit)
        os.chmod(temporary, 0o644)
        os.replace(temporary, name)
        sync_folder(name.parent)

    def snapshot_files(self, commit: str) -> Iterator[tuple[str, Path]]:
        """The paths of a snapshot, each with the file that it links to."""
        folder = self.snapshot(commit)
        for name in sorted(folder.rglob("*")) if folder.is_dir() else ():
            real = name.resolve()
            if real.is_file():
                yield name.relative_to(folder).as_posix(), real


def blob_folders() -> list[Path]:
    """The blob folder of every repository in the cache."""
    return sorted(hf_cache_folder().glob("models--*/blobs"))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive advisory lock on `path`; other threads and processes wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
