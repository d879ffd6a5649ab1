"""The spool: unfinished uploads, each a local file that parts are appended to and fsynced."""

import fcntl
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from deltahub.registry import cancellation, failpoints
from deltahub.registry.names import LFS_BYTES
from deltahub.registry.storage.base import Buffer, StoreUnavailable
from deltahub.registry.storage.checksums import BlockChecksums
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.local import translated

_READ_BYTES = 1 << 20
# Hash states that are kept between the parts of uploads. Others are computed again.
_KEPT_STATES = 256


class SpoolBusy(StoreUnavailable):
    """Another connection is appending to this upload."""

    code = "spool_busy"


class Hashes:
    """SHA-256 and block checksums of the bytes so far, and SHA-1 of a git blob of `total` bytes.

    For a file of LFS_BYTES or more there is no SHA-1, because git stores only a pointer to it.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.n_bytes = 0
        self._sha256 = hashlib.sha256()
        self._blocks = BlockChecksums()
        # SHA-1 is not for security here: it is the name of a git blob.
        blob = None if total >= LFS_BYTES else hashlib.sha1(usedforsecurity=False)
        if blob is not None:
            blob.update(b"blob %d\0" % total)
        self._git = blob

    def update(self, data: Buffer) -> None:
        self._sha256.update(data)
        self._blocks.update(data)
        if self._git is not None:
            self._git.update(data)
        self.n_bytes += memoryview(data).nbytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def git_blob_id(self) -> str | None:
        return None if self._git is None else self._git.hexdigest()

    @property
    def checksums(self) -> bytes:
        """The table of checksums by block (checksums.py)."""
        return self._blocks.table()

    def copy(self) -> "Hashes":
        twin = Hashes.__new__(Hashes)
        twin.total, twin.n_bytes = self.total, self.n_bytes
        twin._sha256 = self._sha256.copy()
        twin._blocks = self._blocks.copy()
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
        """Bytes in the file, including a part that is being received; None without a file."""
        try:
            return self.path(upload_id).stat().st_size
        except FileNotFoundError:
            return None

    @contextmanager
    def open(self, upload_id: str, total: int) -> Iterator["SpoolFile"]:
        """The upload's file, created if missing, for one writer at a time (else SpoolBusy)."""
        with translated(upload_id):
            file = SpoolFile.open(self, upload_id, total)
        try:
            yield file
        finally:
            file.close()

    @contextmanager
    def locked(self, upload_id: str) -> Iterator[bool]:
        """Lock the upload's file; False if a request is appending to it."""
        try:
            fd = os.open(self.path(upload_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield True  # complete or never begun; a new request extends expires_at first
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def discard(self, upload_id: str) -> None:
        """Delete the file, if there is one."""
        self.take_state(upload_id)
        with translated(upload_id):
            try:
                self.disk.unlink(self.path(upload_id))
            except FileNotFoundError:
                return
            self.disk.fsync_dir(self.root)

    def list(self) -> Iterator[str]:
        """The ids of all uploads that have a file."""
        if not self.root.is_dir():
            return  # a copy of a hub that is open for reading
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
                # Another process wrote the file, or this one was restarted: hash the file's bytes.
                # If the writer was killed, the bytes and the name may not be durable yet.
                spool.disk.fsync(fd)
                spool.disk.fsync_dir(spool.root)
                hashes = _hashes_of(fd, total)
            os.lseek(fd, size, os.SEEK_SET)
            return cls(spool, upload_id, fd, hashes)
        except BaseException:
            spool.disk.close(fd)
            raise

    def append(self, data: Buffer) -> None:
        """Write after the last byte; StoreFull."""
        with translated(self._upload_id):
            self._spool.disk.write(self._fd, data)
        self.hashes.update(data)
        self.size += memoryview(data).nbytes

    def sync(self) -> None:
        """Make all appended bytes durable."""
        with translated(self._upload_id):
            failpoints.reached("spool.append.before_fsync")
            self._spool.disk.fsync(self._fd)
            failpoints.reached("spool.append.after_fsync")
        self._durable = self.hashes.copy()

    def roll_back(self) -> None:
        """Remove the bytes that were appended after the last sync()."""
        self._truncate(self._durable.copy())

    def restart(self) -> None:
        """Remove all bytes."""
        self._truncate(Hashes(self.hashes.total))
        self._durable = self.hashes.copy()

    def close(self) -> None:
        """Remove bytes that were not synced, and release the lock."""
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

    def _truncate(self, hashes: Hashes) -> None:
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
        # The upload was finished or discarded between opening and locking: open it again.
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
        cancellation.check()
        hashes.update(buffer[:n])
    return hashes
