"""The folder of the cache: its files, how many bytes they take, and which of them go first.

All processes of a machine share the folder. They agree through the folder alone: the file `usage`
says how many bytes the others take, and is written under the lock `lock`, which a dead process
does not hold. Nobody holds it while bytes are fetched.
"""

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from deltahub.registry.storage.cache.entry import DamagedEntry, Entry, table_bytes
from deltahub.registry.storage.disk import Disk

log = logging.getLogger(__name__)

# Free bytes on the disk below which the cache does not grow, and shrinks: as many as its limit, but
# at most this many.
MOST_KEPT_FREE: Final = 4 << 30
# Seconds that a mark of use may be old. Marking each read would be a write for each read.
USED_S: Final = 30.0
# Seconds after which a file that was never given its name is deleted.
_LEFTOVER_S: Final = 3600.0
# Seconds between two warnings that the folder cannot be used.
_WARNING_S: Final = 60.0
_LOCK: Final = "lock"
_USAGE: Final = "usage"
_TEMPORARY: Final = "new-"
_ENTRY: Final = "of-"
_BLOCK: Final = 512  # unit of st_blocks
# Files that stay open for their next reader: a read would take a tenth longer with its own open().
_MOST_IDLE: Final = 4


class CacheReads:
    """Counts reads of a process through a cache, and their bytes. Safe to share between threads.

    A hit is a read whose bytes all lie in the cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_hits = self.n_misses = 0
        self.hit_bytes = self.miss_bytes = 0

    def add(self, n_bytes: int, *, is_hit: bool) -> None:
        with self._lock:
            if is_hit:
                self.n_hits += 1
                self.hit_bytes += n_bytes
            else:
                self.n_misses += 1
                self.miss_bytes += n_bytes


class ObjectCache:
    """Copies of parts of objects in a folder, at most `limit_bytes`. Thread-safe.

    A folder that cannot be used is logged, and nothing is cached. It is tried again at each read.
    Objects must never change, but an object may be replaced if drop() is called after that.
    """

    def __init__(
        self, folder: Path, limit_bytes: int, disk: Disk, *, keep_free: int | None = None
    ) -> None:
        """keep_free: bytes that stay free on the disk."""
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._disk = disk
        self._keep_free = min(limit_bytes, MOST_KEPT_FREE) if keep_free is None else keep_free
        self._warned_at = -_WARNING_S
        self._idle: dict[str, Entry] = {}
        self._idle_lock = threading.Lock()
        self.reads = CacheReads()

    def open(self, key: str) -> Entry | None:
        """The file of an object; None if there is none that can be used."""
        try:
            entry = self._take_idle(key)
            if entry is None:
                entry = Entry.open(self._disk, self._path(key), key, self._keep_idle)
            if entry is not None:
                used_at = entry.used_at()
                if used_at is not None and abs(time.time() - used_at) > USED_S:
                    with suppress(OSError):
                        entry.touch()
            return entry
        except DamagedEntry as exc:
            self.drop_damaged(key, exc)
            return None
        except OSError as exc:
            self._warn(exc)
            return None

    def close_idle(self) -> None:
        """Close the files that nobody reads now."""
        with self._idle_lock:
            entries = list(self._idle.values())
            self._idle.clear()
        for entry in entries:
            entry.close()

    def open_or_create(self, key: str, size_of: Callable[[], int]) -> Entry | None:
        """The file of an object, made if need be; None if there is no room or no usable folder.

        size_of: called to learn the object's size if the file has to be made.
        """
        entry = self.open(key)
        if entry is not None:
            return entry
        size = size_of()
        temporary = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with self._locked():
                path = self._path(key)
                # Another file of the key is not replaced: a fetch may be writing into it.
                if not path.exists():
                    if not self._reserve(table_bytes(size)):
                        return None
                    Entry.create(self._disk, temporary, path, key, size)
        except OSError as exc:
            self._warn(exc)
            with suppress(OSError):
                self._disk.unlink(temporary)
            return None
        return self.open(key)

    def write(self, entry: Entry, start: int, data: memoryview) -> bool:
        """Keep these segments if there is room; whether they are kept."""
        try:
            # Under the lock, so that a scan by another process sees all that was counted.
            with self._locked():
                if not self._reserve(data.nbytes):
                    return False
                entry.write(start, data)
                return True
        except OSError as exc:
            self._warn(exc)
            return False

    def drop(self, key: str) -> None:
        """Forget an object. Who has its file open goes on with a file without a name."""
        path = self._path(key)
        self.close_idle()
        try:
            if not path.exists():
                return
            with self._locked():
                size = path.stat().st_blocks * _BLOCK
                self._disk.unlink(path)
                usage = self._read_usage()
                if usage is not None:
                    self._write_usage(usage - size)
        except FileNotFoundError:
            return
        except OSError as exc:
            self._warn(exc)

    def drop_damaged(self, key: str, exc: DamagedEntry) -> None:
        """Forget an object whose file is damaged."""
        log.warning("a copy on this disk is damaged, and is fetched again: %s", exc)
        self.drop(key)

    def leave_room(self) -> None:
        """Drop what was used longest ago while the disk is short of space.

        To be called at intervals, so that uploads do not fail because the cache fills the disk.
        """
        self.close_idle()  # another process may have dropped them
        try:
            missing = self._keep_free - self._disk.free_bytes(self._folder)
            if missing > 0 and self.kept_bytes:
                with self._locked():
                    self._write_usage(self._evict(0, missing))
        except FileNotFoundError:
            return
        except OSError as exc:
            self._warn(exc)

    @property
    def kept_bytes(self) -> int:
        """Bytes that the cache takes on the disk."""
        with suppress(OSError):
            return self._read_usage() or 0
        return 0

    def _take_idle(self, key: str) -> Entry | None:
        with self._idle_lock:
            entry = self._idle.pop(key, None)
        if entry is not None and entry.used_at() is None:  # dropped
            entry.close()
            return None
        return entry

    def _keep_idle(self, entry: Entry) -> None:
        with self._idle_lock:
            superfluous = self._idle.pop(entry.key, None)
            if superfluous is None and len(self._idle) >= _MOST_IDLE:
                superfluous = self._idle.pop(next(iter(self._idle)))
            self._idle[entry.key] = entry
        if superfluous is not None:
            superfluous.close()

    def _reserve(self, n_bytes: int) -> bool:
        """Count bytes that are about to be written; make room for them. False if there is none.

        The caller holds the lock. OSError.
        """
        if n_bytes > self.limit_bytes:
            return False
        usage = self._read_usage()
        if usage is None:
            usage = self._scan()[0]
        if usage + n_bytes > self.limit_bytes:
            usage = self._evict(n_bytes, 0)
        # Files are dropped for the sake of the disk by leave_room() alone: it takes a file system
        # seconds to say that the space of a deleted file is free.
        free = self._disk.free_bytes(self._folder) - n_bytes
        has_room = usage + n_bytes <= self.limit_bytes and free >= self._keep_free
        self._write_usage(usage + n_bytes if has_room else usage)
        return has_room

    def _evict(self, n_bytes: int, missing: int) -> int:
        """Drop files until n_bytes fit and `missing` bytes are freed; returns the bytes left.

        An eighth of the limit is freed as well, so that not each fetch looks at all files.
        """
        usage, files = self._scan()
        wanted = max(usage + n_bytes - self.limit_bytes * 7 // 8, missing)
        for _, size, path in sorted(files):
            if wanted <= 0:
                break
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            wanted -= size
            usage -= size
        return usage

    def _scan(self) -> tuple[int, list[tuple[float, int, Path]]]:
        """The bytes on the disk; and (last use, bytes, path) of each file."""
        files: list[tuple[float, int, Path]] = []
        now = time.time()
        with os.scandir(self._folder) as scan:
            for item in scan:
                with suppress(FileNotFoundError):  # another process dropped it
                    stat = item.stat(follow_symlinks=False)
                    path = self._folder / item.name
                    if item.name.startswith(_ENTRY):
                        files.append((stat.st_mtime, stat.st_blocks * _BLOCK, path))
                    elif item.name.startswith(_TEMPORARY) and stat.st_mtime < now - _LEFTOVER_S:
                        self._disk.unlink(path)
        return sum(size for _, size, _ in files), files

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fd = self._disk.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            with suppress(FileExistsError):
                self._disk.mkdir(self._folder)
            fd = self._disk.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(fd)

    def _read_usage(self) -> int | None:
        """What the file says; None if there is none, or if it is damaged."""
        try:
            data = (self._folder / _USAGE).read_bytes()
        except FileNotFoundError:
            return None
        return int.from_bytes(data[:8], "little") if data[8:] == _digest(data[:8]) else None

    def _write_usage(self, usage: int) -> None:
        data = max(usage, 0).to_bytes(8, "little")
        fd = self._disk.open(self._folder / _USAGE, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.write_at(fd, data + _digest(data), 0)
        finally:
            self._disk.close(fd)

    def _path(self, key: str) -> Path:
        return self._folder / (_ENTRY + key.replace("/", ","))

    def _warn(self, exc: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_S:
            self._warned_at = now
            log.warning(
                "objects are read from the bucket, without copies in %s: %s", self._folder, exc
            )


def _digest(data: bytes) -> bytes:
    return xxhash.xxh3_64_digest(data)
