"""Uploads while they come in: one local file each, appended to, fsynced before it is believed."""

import fcntl
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from deltahub.registry import failpoints
from deltahub.registry.names import LFS_BYTES
from deltahub.registry.storage.base import Buffer, StoreUnavailable
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated

_READ_BYTES = 1 << 20
# Hash states kept between the parts of uploads; one that is not kept is computed again.
_KEPT_STATES = 256


class SpoolBusy(StoreUnavailable):
    """Somebody else is appending to this upload at this moment."""

    code = "spool_busy"


class Hashes:
    """SHA-256 of the bytes so far, and SHA-1 of a git blob that will have `total` bytes.

    Of what is large for git there is no blob, but a pointer to it, and no second hash is made.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.n_bytes = 0
        self._sha256 = hashlib.sha256()
        # Not for security: git names its blobs so.
        blob = None if total >= LFS_BYTES else hashlib.sha1(usedforsecurity=False)
        if blob is not None:
            blob.update(b"blob %d\0" % total)
        self._git = blob

    def update(self, data: Buffer) -> None:
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)
        self.n_bytes += memoryview(data).nbytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def git_blob_id(self) -> str | None:
        return None if self._git is None else self._git.hexdigest()

    def copy(self) -> "Hashes":
        twin = Hashes.__new__(Hashes)
        twin.total, twin.n_bytes = self.total, self.n_bytes
        twin._sha256 = self._sha256.copy()
        twin._git = None if self._git is None else self._git.copy()
        return twin


class Spool:
    """The folder of unfinished uploads, shared by all processes of the registry."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self._states: OrderedDict[str, Hashes] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, upload_id: str) -> Path:
        return self.root / upload_id

    def size(self, upload_id: str) -> int | None:
        """Bytes in the file, None if there is none. A part being received right now is included."""
        try:
            return self.path(upload_id).stat().st_size
        except FileNotFoundError:
            return None

    @contextmanager
    def open(self, upload_id: str, total: int) -> Iterator["SpoolFile"]:
        """The upload's file, made if absent, for one writer at a time (else SpoolBusy)."""
        with translated(upload_id):
            file = SpoolFile.open(self, upload_id, total)
        try:
            yield file
        finally:
            file.close()

    def discard(self, upload_id: str) -> None:
        """Remove the file; nothing happens if there is none."""
        self.take_state(upload_id)
        with translated(upload_id):
            try:
                self.disk.unlink(self.path(upload_id))
            except FileNotFoundError:
                return
            self.disk.fsync_dir(self.root)

    def list(self) -> Iterator[str]:
        """The ids of all uploads that have a file."""
        yield from sorted(path.name for path in self.root.iterdir())

    def take_state(self, upload_id: str) -> Hashes | None:
        with self._lock:
            return self._states.pop(upload_id, None)

    def keep_state(self, upload_id: str, hashes: Hashes) -> None:
        with self._lock:
            self._states[upload_id] = hashes
            while len(self._states) > _KEPT_STATES:
                self._states.popitem(last=False)

    def close(self) -> None:
        with self._lock:
            self._states.clear()


class SpoolFile:
    """One unfinished upload, locked. `size` bytes are durable; appended ones only after sync()."""

    def __init__(self, spool: Spool, upload_id: str, fd: int, hashes: Hashes) -> None:
        self.path = spool.path(upload_id)
        self.hashes = hashes
        self.size = hashes.n_bytes
        self._spool = spool
        self._upload_id = upload_id
        self._fd = fd
        self._durable = hashes.copy()

    @classmethod
    def open(cls, spool: Spool, upload_id: str, total: int) -> Self:
        fd = _open_locked(spool, upload_id)
        try:
            size = os.fstat(fd).st_size
            hashes = spool.take_state(upload_id)
            if hashes is None or hashes.n_bytes != size or hashes.total != total:
                # Another process wrote it, or this one was restarted: what is in the file counts.
                # Neither its bytes nor its name need be durable if that process was killed.
                spool.disk.fsync(fd)
                spool.disk.fsync_dir(spool.root)
                hashes = _hashes_of(fd, total)
            os.lseek(fd, size, os.SEEK_SET)
            return cls(spool, upload_id, fd, hashes)
        except BaseException:
            spool.disk.close(fd)
            raise

    def append(self, data: Buffer) -> None:
        """Write behind the last byte; StoreFull."""
        with translated(self._upload_id):
            self._spool.disk.write(self._fd, data)
        self.hashes.update(data)
        self.size += memoryview(data).nbytes

    def sync(self) -> None:
        """Make all that was appended durable."""
        with translated(self._upload_id):
            failpoints.reached("spool.append.before_fsync")
            self._spool.disk.fsync(self._fd)
            failpoints.reached("spool.append.after_fsync")
        self._durable = self.hashes.copy()

    def roll_back(self) -> None:
        """Forget what was appended since the last sync()."""
        self._cut(self._durable.copy())

    def restart(self) -> None:
        """Forget everything."""
        self._cut(Hashes(self.hashes.total))
        self._durable = self.hashes.copy()

    def close(self) -> None:
        """Give the lock back; what was appended and not synced is taken away again."""
        if self._fd < 0:
            return
        try:
            if self.hashes.n_bytes != self._durable.n_bytes:
                self.roll_back()
            if self._spool.size(self._upload_id) == self.size:
                self._spool.keep_state(self._upload_id, self._durable)
        finally:
            self._spool.disk.close(self._fd)
            self._fd = -1

    def _cut(self, hashes: Hashes) -> None:
        with translated(self._upload_id):
            self._spool.disk.truncate(self._fd, hashes.n_bytes)
            os.lseek(self._fd, hashes.n_bytes, os.SEEK_SET)
        self.hashes, self.size = hashes, hashes.n_bytes


def _open_locked(spool: Spool, upload_id: str) -> int:
    path = spool.path(upload_id)
    while True:
        fd = spool.disk.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(fd, path):
                return fd
        except BlockingIOError as exc:
            spool.disk.close(fd)
            raise SpoolBusy("this upload is being received on another connection") from exc
        except BaseException:
            spool.disk.close(fd)
            raise
        # It was finished or discarded between opening and locking: begin anew.
        spool.disk.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _hashes_of(fd: int, total: int) -> Hashes:
    hashes = Hashes(total)
    buffer = memoryview(bytearray(_READ_BYTES))
    while n := os.preadv(fd, [buffer], hashes.n_bytes):
        hashes.update(buffer[:n])
    return hashes
