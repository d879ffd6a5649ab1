"""Unfinished uploads as files of one machine, which parts are appended to and fsynced."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from deltahub.registry import cancellation, failpoints
from deltahub.registry.db.session import WriteSession
from deltahub.registry.spools.kept import KeptHashes
from deltahub.registry.storage.base import Buffer, SpoolBusy, Store
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.disk import Disk
from deltahub.registry.storage.keys import landing_key
from deltahub.registry.storage.local import translated

_READ_BYTES = 1 << 20


class LocalSpool:
    """A folder of unfinished uploads, shared by all processes of the machine."""

    def __init__(self, root: Path, disk: Disk, store: Store) -> None:
        """store: of the complete uploads."""
        self.root = root
        self.disk = disk
        self.store = store
        self.kept = KeptHashes()

    def path(self, upload_id: str) -> Path:
        return self.root / upload_id

    def size(self, upload_id: str) -> int | None:
        """Bytes in the file, including a part that is being received; None without a file."""
        try:
            return self.path(upload_id).stat().st_size
        except FileNotFoundError:
            return None

    @contextmanager
    def open(self, upload_id: str, total: int) -> Iterator["LocalUpload"]:
        """The upload's file, created if missing, for one writer at a time (else SpoolBusy)."""
        with translated(upload_id):
            file = LocalUpload.open(self, upload_id, total)
        try:
            yield file
        finally:
            file.close()

    @contextmanager
    def locked(self, upload_id: str) -> Iterator["LocalClaim | None"]:
        """Lock the upload's file; None if a request is appending to it."""
        claim = LocalClaim(self, upload_id)
        try:
            fd = os.open(self.path(upload_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield claim  # complete or never begun; a new request extends expires_at first
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield claim
        finally:
            os.close(fd)

    def revoke(self, upload_id: str) -> None:
        """Nothing: the bytes of a file become an object only after their SHA-256 was compared."""

    def local_bytes(self, sizes: Iterable[int]) -> int:
        return sum(sizes)

    def discard(self, upload_id: str) -> None:
        """Delete the file, if there is one."""
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

    def close(self) -> None:
        self.kept.clear()


class LocalClaim:
    """The lock of an upload's file, which no other process can take over."""

    def __init__(self, spool: LocalSpool, upload_id: str) -> None:
        self._spool = spool
        self._upload_id = upload_id

    def settle(self, session: WriteSession) -> bool:
        return True

    def discard(self) -> None:
        self._spool.discard(self._upload_id)


class LocalUpload(LocalClaim):
    """One unfinished upload, locked. `size` bytes are durable; appended ones only after sync()."""

    def __init__(self, spool: LocalSpool, upload_id: str, fd: int, hashes: Hashes) -> None:
        super().__init__(spool, upload_id)
        self.size = hashes.n_bytes
        self._hashes = hashes
        self._fd = fd
        self._durable = hashes.copy()

    @classmethod
    def open(cls, spool: LocalSpool, upload_id: str, total: int) -> Self:
        fd = _open_locked(spool, upload_id)
        try:
            size = os.fstat(fd).st_size
            hashes = spool.kept.take(_version(upload_id, fd))
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
        self._hashes.update(data)
        self.size += memoryview(data).nbytes

    def sync(self) -> None:
        """Make all appended bytes durable."""
        with translated(self._upload_id):
            failpoints.reached("spool.append.before_fsync")
            self._spool.disk.fsync(self._fd)
            failpoints.reached("spool.append.after_fsync")
        self._durable = self._hashes.copy()

    def roll_back(self) -> None:
        """Remove the bytes that were appended after the last sync()."""
        self._truncate(self._durable.copy())

    def restart(self) -> None:
        """Remove all bytes."""
        self._truncate(Hashes(self._hashes.total))
        self._durable = self._hashes.copy()

    def store(self, sha256: str) -> Hashes:
        if self._hashes.sha256 == sha256:
            path = self._spool.path(self._upload_id)
            self._spool.store.take_file(landing_key(self._upload_id), path)
        return self._hashes

    def close(self) -> None:
        """Remove bytes that were not synced, and release the lock."""
        if self._fd < 0:
            return
        try:
            if self._hashes.n_bytes != self._durable.n_bytes:
                self.roll_back()
            if self._spool.size(self._upload_id) == self.size:
                self._spool.kept.keep(_version(self._upload_id, self._fd), self._durable)
        finally:
            self._spool.disk.close(self._fd)
            self._fd = -1

    def _truncate(self, hashes: Hashes) -> None:
        with translated(self._upload_id):
            self._spool.disk.truncate(self._fd, hashes.n_bytes)
            os.lseek(self._fd, hashes.n_bytes, os.SEEK_SET)
        self._hashes, self.size = hashes, hashes.n_bytes


def _open_locked(spool: LocalSpool, upload_id: str) -> int:
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


def _version(upload_id: str, fd: int) -> str:
    """A name of the file's bytes: another process may have put as many others in their place."""
    found = os.fstat(fd)
    return f"{upload_id} {found.st_ino} {found.st_mtime_ns}"


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
