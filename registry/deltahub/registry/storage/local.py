"""An object store whose objects are files below one local folder."""

import errno
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from deltahub.registry import failpoints
from deltahub.registry.storage.base import (
    MARK,
    Buffer,
    NoCache,
    ObjectInfo,
    ObjectNotFound,
    ShortObject,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Unfinished,
)
from deltahub.registry.storage.disk import Disk, Folders
from deltahub.registry.storage.keys import check_key, check_prefix

# A temporary file of this age in seconds is deleted, because its put must have been killed.
LEFTOVER_AGE_S = 86400.0
# A time further in the future than this was written by a clock that was ahead.
CLOCK_SLACK_S = 300.0
# No key may begin with a dot, so this folder cannot hold an object.
_TEMPORARY = ".tmp"
_COPY_BYTES = 1 << 20
# Objects that put_together() writes at once, each of them an open file.
_BATCH_OBJECTS = 64
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translated(key: str) -> Iterator[None]:
    """A context in which OSError is raised as StoreError, with the key in the message."""
    try:
        yield
    except OSError as exc:
        raise _translation(key, exc) from exc


def is_made(root: Path) -> bool:
    """Whether a store was made in this folder. A mount point without its disk has none."""
    return (root / _TEMPORARY).is_dir()


def _translation(key: str, exc: OSError, *, is_read: bool = False) -> StoreError:
    if is_read and isinstance(exc, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFound(f"there is no object {key}")
    if exc.errno in _NO_ROOM:
        return StoreFull(f"no room on the disk for {key}: {exc.strerror}")
    return StoreUnavailable(f"{key}: {exc.strerror or exc}")


class FileStore(NoCache):
    """A store in a folder of a local file system. Processes may share it."""

    def __init__(self, root: Path, disk: Disk | None = None, *, is_read_only: bool = False) -> None:
        """is_read_only: create and delete nothing here. The caller puts no object."""
        self.root = root.resolve()
        self._folder = str(self.root)
        self._disk = disk if disk is not None else Disk()
        self._folders = Folders(self._disk, self.root)
        self._temporary = self.root / _TEMPORARY
        # The mark that this process has read or written: another one means another disk.
        self._known: str | None = None
        if is_read_only:
            return
        with translated(str(root)):
            self._folders.ensure(self._temporary)
            self._remove_leftovers(time.time())

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        with translated(key):
            self._write(self._path(key), chunks)

    def _write(self, target: Path, chunks: Iterable[Buffer]) -> None:
        temporary = self._temporary / secrets.token_hex(16)
        fd = self._disk.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            try:
                for chunk in chunks:
                    self._disk.write(fd, chunk)
                failpoints.reached("store.put.before_fsync")
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            failpoints.reached("store.put.after_fsync")
            self._folders.ensure(target.parent)
            self._disk.rename(temporary, target)
        finally:
            with suppress(FileNotFoundError):  # it was renamed
                self._disk.unlink(temporary)
        failpoints.reached("store.put.after_rename")
        self._disk.fsync_dir(target.parent)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        items = iter(objects.items())
        while batch := dict(islice(items, _BATCH_OBJECTS)):
            self._put_batch(batch)

    def take_file(self, key: str, path: Path) -> None:
        target = self._path(key)
        if self._is_away():
            raise self._away(key)
        with translated(key):
            self._folders.ensure(target.parent)
            failpoints.reached("store.take_file.before_rename")
            try:
                self._disk.rename(path, target)
            except OSError as exc:
                if exc.errno != errno.EXDEV:
                    raise
                # The file is on another file system: copy it, then delete the original.
                self.put(key, _chunks_of(path))
                self._disk.unlink(path)
                return
            failpoints.reached("store.take_file.after_rename")
            self._disk.fsync_dir(target.parent)
            self._disk.fsync_dir(path.parent)

    def _put_batch(self, objects: Mapping[str, Buffer]) -> None:
        """Write all objects, then fsync them, then fsync each folder once.

        The first fsync writes most of the other objects to the disk, too, so the others are fast.
        """
        targets = {key: self._path(key) for key in objects}
        temporary = {key: self._temporary / secrets.token_hex(16) for key in objects}
        fds: list[int] = []
        with translated(f"{len(objects)} objects, the first of them {next(iter(objects))}"):
            try:
                for key, data in objects.items():
                    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                    fds.append(self._disk.open(temporary[key], flags))
                    self._disk.write(fds[-1], data)
                failpoints.reached("store.put_together.before_fsync")
                for fd in fds:
                    self._disk.fsync(fd)
                failpoints.reached("store.put_together.after_fsync")
                for key, target in targets.items():
                    self._folders.ensure(target.parent)
                    self._disk.rename(temporary[key], target)
                    failpoints.reached("store.put_together.after_rename")
            finally:
                for fd in fds:
                    self._disk.close(fd)
                for path in temporary.values():
                    with suppress(FileNotFoundError):  # it was renamed, or never made
                        self._disk.unlink(path)
            for folder in {target.parent for target in targets.values()}:
                self._disk.fsync_dir(folder)

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        # A str, because making a Path takes longer than opening the file.
        path = f"{self._folder}/{check_key(key)}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                view, position = out.cast("B"), start
                while view:
                    n = os.preadv(fd, [view], position)
                    if n == 0:
                        size, end = os.fstat(fd).st_size, start + out.nbytes
                        raise ShortObject(f"{key} has {size} bytes; {start}..{end} were asked")
                    view, position = view[n:], position + n
            finally:
                os.close(fd)
        except OSError as exc:
            raise self._read_error(key, exc) from exc

    def size(self, key: str) -> int:
        path = self._path(key)
        try:
            stat = path.stat()
        except OSError as exc:
            raise self._read_error(key, exc) from exc
        if not S_ISREG(stat.st_mode):
            raise ObjectNotFound(f"there is no object {key}")
        return stat.st_size

    def delete(self, key: str) -> None:
        self.delete_together((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            with translated(key):
                try:
                    self._disk.unlink(path)
                except FileNotFoundError:
                    continue
            failpoints.reached("store.delete.after_unlink")
            folders.add(path.parent)
        for folder in folders:
            with translated(folder.name):
                self._disk.fsync_dir(folder)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        yield from self._walk(self.root, "", prefix)

    def unfinished(self) -> Iterator[Unfinished]:
        try:
            paths = sorted(self._temporary.iterdir())
        except FileNotFoundError:
            return  # a copy of a hub that is open for reading
        for path in paths:
            with suppress(FileNotFoundError):  # its put has ended
                yield _unfinished(path)

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        path = self._temporary / Path(unfinished.id).name
        with translated(unfinished.id):
            try:
                if _unfinished(path).modified_at > unfinished.modified_at:
                    return False
                self._disk.unlink(path)
            except FileNotFoundError:
                return False
        return True

    def parts(self) -> None:
        return None

    def mark(self) -> str | None:
        with translated(MARK):
            mark = self._read_mark()
        if self._known is None:
            self._known = mark
        return mark

    def set_mark(self, mark: str) -> None:
        with translated(MARK):
            self._write(self.root / MARK, [f"{mark}\n".encode()])
        self._known = mark

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        return None

    def close(self) -> None:
        pass

    def _walk(self, folder: Path, above: str, prefix: str) -> Iterator[ObjectInfo]:
        """The objects below `folder` whose keys begin with `prefix`, in order of key.

        above: the beginning of all keys in this folder.
        """
        try:
            with os.scandir(folder) as scan:
                entries = [entry for entry in scan if not entry.name.startswith(".")]
        except FileNotFoundError:
            return
        # Folders are sorted with a trailing slash, because "a-b" comes before "a/b".
        named = sorted((e.name + "/" if e.is_dir() else e.name, e) for e in entries)
        for name, entry in named:
            key = above + name
            if not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(folder / entry.name, key, prefix)
                continue
            with suppress(FileNotFoundError):  # it was deleted after the scan of the folder
                stat = entry.stat()
                at = datetime.fromtimestamp(stat.st_mtime, UTC)
                yield ObjectInfo(key, stat.st_size, at)

    def _read_error(self, key: str, exc: OSError) -> StoreError:
        error = _translation(key, exc, is_read=True)
        return self._away(key) if isinstance(error, ObjectNotFound) and self._is_away() else error

    def _is_away(self) -> bool:
        if not is_made(self.root):
            return True
        try:
            return self._known is not None and self._read_mark() != self._known
        except OSError:  # a disk that fails lacks nothing for certain
            return True

    def _read_mark(self) -> str | None:
        try:
            return (self.root / MARK).read_text().strip()
        except FileNotFoundError:
            return None

    def _away(self, key: str) -> StoreUnavailable:
        return StoreUnavailable(f"{key}: the disk of {self.root} seems to be away")

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _remove_leftovers(self, now: float) -> None:
        for path in self._temporary.iterdir():
            with suppress(FileNotFoundError):  # another process deleted it
                written_at = path.stat().st_mtime
                if written_at < now - LEFTOVER_AGE_S:
                    self._disk.unlink(path)
                elif written_at > now + CLOCK_SLACK_S:
                    os.utime(path, (now, now))  # the clock was ahead: its age counts from now


def _unfinished(path: Path) -> Unfinished:
    found = path.stat()
    modified_at = datetime.fromtimestamp(found.st_mtime, UTC)
    return Unfinished(path.name, "", found.st_size, modified_at)


def _chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            yield chunk
