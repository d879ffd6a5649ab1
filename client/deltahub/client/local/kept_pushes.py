"""Copies of the weights that were pushed last, so that the next push can send the step from them.

A trainer often writes each checkpoint over the one before. The bytes that the hub has are then no
longer on this machine, and without a copy the next push would send all of the weights.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltahub.client.errors import DiskFull, InvalidArgument, LocalFileChanged
from deltahub.client.local.hashing import index_file, no_progress
from deltahub.client.local.hf_cache import hf_cache_folder, locked
from deltahub.client.local.index import LocalIndex, Stamp
from deltahub.client.local.paths import cache_folder, disk_full, read_at, write_at

SETTING = "DELTAHUB_KEPT_PUSHES_BYTES"
DEFAULT_BYTES = 32 << 30
_CHUNK = 1 << 20
# The request FICLONE of Linux: both files share their blocks until one of them is written to.
_CLONE = 0x40049409


@dataclass(frozen=True)
class PushedWeights:
    """A safetensors file as it was pushed. stamp: at the time when its SHA-256 was taken."""

    source: Path
    stamp: Stamp
    sha256: str


class KeptPushes:
    """The kept weights of one branch: a folder of files that are named by their SHA-256.

    No file is a hard link to the pushed one, because a trainer that writes into that would change
    the copy with it.
    """

    def __init__(self, index: LocalIndex, url: str, name: str, branch: str) -> None:
        """InvalidArgument if the setting is not a number of bytes."""
        self._index = index
        self._limit = _limit()
        self._all = cache_folder().absolute() / "pushed"
        key = hashlib.sha256(f"{url}\n{name}\n{branch}".encode()).hexdigest()[:32]
        self._folder = self._all / key

    def index_files(self) -> None:
        """Adds the kept files to the index, which may have been deleted."""
        for path in _files_in(self._folder):
            with contextlib.suppress(OSError, LocalFileChanged):
                index_file(path, "model.safetensors", self._index)

    def to_copy(self, weights: Sequence[PushedWeights]) -> int:
        """Bytes of the files that keep() would copy."""
        return sum(each.stamp.size for each in weights if not self._is_settled(each))

    def keep(
        self,
        weights: Sequence[PushedWeights],
        others: Collection[str],
        on_done: Callable[[int], None] = no_progress,
    ) -> list[str]:
        """Keeps these files; returns a sentence for each that could not be kept.

        others: SHA-256s of the branch's other files, whose copies stay. The rest of its copies are
        deleted, and then those of the branches that were pushed to longest ago, until the limit
        holds. on_done: called with the size of each file that is copied.
        """
        if not self._limit:
            self._delete_all()
            return []
        if not weights:
            return []
        problems: list[str] = []
        with locked(self._all / "lock"):
            self._folder.mkdir(exist_ok=True)
            os.utime(self._folder)
            wanted = {*others, *(each.sha256 for each in weights)}
            self._delete(path for path in _files_in(self._folder) if path.name not in wanted)
            for each in weights:
                if not self._is_settled(each):
                    problem = self._keep(each)
                    problems += [] if problem is None else [problem]
                    on_done(each.stamp.size)
        return problems

    def _is_settled(self, weights: PushedWeights) -> bool:
        """Whether nothing has to be copied: there is a copy, or a file that nobody writes over."""
        if not self._limit or (self._folder / weights.sha256).exists():
            return True
        return weights.source.is_relative_to(hf_cache_folder().resolve())

    def _keep(self, weights: PushedWeights) -> str | None:
        target = self._folder / weights.sha256
        tensors = self._index.tensors_of(weights.source, weights.stamp)
        if tensors is None:
            return f"{weights.source.name} was written to after it was pushed"
        if not self._make_room(weights.stamp.size):
            return f"{weights.source.name} is larger than {SETTING} allows ({self._limit} bytes)"
        fd, work = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            _copy(weights, fd, Path(work))
            os.replace(work, target)
        except (OSError, DiskFull, LocalFileChanged) as exc:
            with contextlib.suppress(OSError):
                os.unlink(work)
            return f"{weights.source.name}: {exc}"
        finally:
            os.close(fd)
        stamp = Stamp.of(target.stat())
        self._index.remember(target, stamp, sha256=weights.sha256, tensors=tensors)
        return None

    def _make_room(self, size: int) -> bool:
        """Whether `size` more bytes keep the limit, after copies of other branches were deleted."""
        kept = {folder: _size_of(folder) for folder in self._folders()}
        for folder in sorted(kept.keys() - {self._folder}, key=lambda path: path.stat().st_mtime):
            if sum(kept.values()) + size <= self._limit:
                break
            self._delete(_files_in(folder))
            del kept[folder]
        return sum(kept.values()) + size <= self._limit

    def _delete_all(self) -> None:
        if not self._all.exists():
            return
        with locked(self._all / "lock"):
            for folder in self._folders():
                self._delete(_files_in(folder))

    def _folders(self) -> list[Path]:
        return [path for path in self._all.iterdir() if path.is_dir()]

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._index.forget(path)
            path.unlink(missing_ok=True)


def _limit() -> int:
    value = os.environ.get(SETTING, "").strip()
    if not value:
        return DEFAULT_BYTES
    if not value.isdecimal():
        raise InvalidArgument(f"{SETTING} is {value!r}, which is no number of bytes; 0 keeps none")
    return int(value)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files_in(folder))


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _copy(weights: PushedWeights, fd: int, work: Path) -> None:
    """Copies the file, without its bytes where the file system can. LocalFileChanged, DiskFull."""
    with weights.source.open("rb", buffering=0) as source:
        try:
            fcntl.ioctl(fd, _CLONE, source.fileno())
        except OSError:
            _copy_bytes(weights, source.fileno(), fd, work)
        if Stamp.of(os.fstat(source.fileno())) != weights.stamp:
            raise LocalFileChanged("it was written to after it was pushed")


def _copy_bytes(weights: PushedWeights, source: int, fd: int, work: Path) -> None:
    size = weights.stamp.size
    free = shutil.disk_usage(work.parent).free
    if size > free // 2:  # others need room, too
        full = OSError(errno.ENOSPC, "more than half of the free bytes")
        raise disk_full(full, work.parent, size)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_CHUNK, max(1, size))))
    for done in range(0, size, _CHUNK):
        part = buffer[: min(_CHUNK, size - done)]
        try:
            read_at(source, part, done)
        except EOFError as exc:
            raise LocalFileChanged("it became shorter after it was pushed") from exc
        digest.update(part)
        write_at(fd, part, done, work)
    if digest.hexdigest() != weights.sha256:
        raise LocalFileChanged("it was written to after it was pushed")
