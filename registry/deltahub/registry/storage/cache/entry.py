"""One file of the cache: a part of one object, each segment with a checksum.

The file has a header, a table of checksums and the object's bytes at their places; what was not
fetched yet is a hole. A segment's checksum is the XXH3-64 of its bytes, seeded by the key and by
the segment's number, so that bytes of another object or of another place do not check. 0 says that
the segment is absent. The bytes are written before their checksum and nothing is fsynced: after a
crash, what was not written does not check, and counts as absent.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import xxhash

from deltahub.registry.storage.disk import Disk

# Every read verifies whole segments. Smaller ones take longer to verify; of larger ones a read of
# a few blocks needs less than it verifies.
SEGMENT_BYTES: Final = 64 << 10
_MAGIC: Final = b"dhcache1"
# Magic, size of the object, XXH3-64 of the key and of both.
_HEADER: Final = struct.Struct("<8sQQ")
_TABLE: Final = 4096
_CHECKSUM: Final = np.dtype("<u8")


class DamagedEntry(Exception):
    """A file of the cache holds other bytes than were written. It is dropped."""

    code = "damaged_cache_entry"


@dataclass(frozen=True)
class Entry:
    """An open file of the cache. Close it soon: it keeps its disk space when it was dropped.

    size: of the object, in bytes. A `with` block ends with give_back(entry), or by closing it.
    """

    key: str
    size: int
    _disk: Disk
    _fd: int
    _give_back: Callable[["Entry"], None] | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        key: str,
        give_back: Callable[["Entry"], None] | None = None,
    ) -> Self | None:
        """The file of this key, None if there is none; DamagedEntry, OSError."""
        try:
            fd = disk.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            header = os.pread(fd, _HEADER.size, 0)
            size = _HEADER.unpack(header)[1] if len(header) == _HEADER.size else 0
            if header != _header(key, size):
                raise DamagedEntry(f"{path} is no file of the cache for {key}")
            return cls(key, size, disk, fd, give_back)
        except BaseException:
            disk.close(fd)
            raise

    @staticmethod
    def create(disk: Disk, temporary: Path, path: Path, key: str, size: int) -> None:
        """Make the file of an object, without bytes of it. OSError."""
        fd = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            disk.write_at(fd, _header(key, size), 0)
            disk.truncate(fd, _data_offset(size) + size)
        finally:
            disk.close(fd)
        disk.rename(temporary, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._give_back is not None:
            self._give_back(self)
        else:
            self.close()

    def close(self) -> None:
        self._disk.close(self._fd)

    def used_at(self) -> float | None:
        """When it was last marked as used, by the system's clock; None if it was dropped."""
        stat = os.fstat(self._fd)
        return stat.st_mtime if stat.st_nlink else None

    def touch(self) -> None:
        """Mark the file as just used."""
        os.utime(self._fd)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges of whole segments that [start, end) needs and that are absent."""
        first, stop = _segments(start, end)
        return [
            self._range(first + low, first + high)
            for low, high, is_there in _runs(self._table(first, stop))
            if not is_there
        ]

    def read_into(self, start: int, out: memoryview) -> list[tuple[int, int]]:
        """Fill those parts of `out` that are there, from byte `start`; the rest as by missing().

        DamagedEntry if a segment does not check; `out` has undefined bytes then.
        """
        first, stop = _segments(start, start + out.nbytes)
        table = self._table(first, stop)
        missing: list[tuple[int, int]] = []
        for low, high, is_there in _runs(table):
            if is_there:
                self._read_run(first + low, table[low:high], start, out)
            else:
                missing.append(self._range(first + low, first + high))
        return missing

    def write(self, start: int, data: memoryview) -> None:
        """Write whole segments (the object's last one is shorter) from byte `start` on. OSError."""
        first, stop = _segments(start, start + data.nbytes)
        checksums = np.empty(stop - first, _CHECKSUM)
        for i in range(stop - first):
            segment = data[i * SEGMENT_BYTES : (i + 1) * SEGMENT_BYTES]
            checksums[i] = _checksum(self.key, first + i, segment)
        self._disk.write_at(self._fd, data, _data_offset(self.size) + start)
        self._disk.write_at(self._fd, checksums.tobytes(), _TABLE + 8 * first)

    def _range(self, first: int, stop: int) -> tuple[int, int]:
        return first * SEGMENT_BYTES, min(stop * SEGMENT_BYTES, self.size)

    def _table(self, first: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        try:
            data = os.pread(self._fd, 8 * (stop - first), _TABLE + 8 * first)
        except OSError as exc:
            raise DamagedEntry(f"the cached file of {self.key}: {exc}") from exc
        if len(data) < 8 * (stop - first):
            raise DamagedEntry(f"the cached file of {self.key} is cut short")
        return np.frombuffer(data, _CHECKSUM)

    def _read_run(
        self,
        first: int,
        checksums: np.ndarray[tuple[int], np.dtype[np.uint64]],
        start: int,
        out: memoryview,
    ) -> None:
        """Fill the part of `out` that these segments hold, and verify them whole."""
        low, high = self._range(first, first + len(checksums))
        end = start + out.nbytes
        # Segments that `out` takes in part go through memory of their own.
        before = memoryview(bytearray(SEGMENT_BYTES if low < start else 0))
        after = memoryview(b"")
        inner_low, inner_high = low + before.nbytes, high
        if inner_low >= high:  # the first one is the only one
            before = before[: high - low]
            inner_low = inner_high = high
        elif end < high:
            inner_high = (high - 1) // SEGMENT_BYTES * SEGMENT_BYTES
            after = memoryview(bytearray(high - inner_high))
        inner = out[inner_low - start : inner_high - start] if inner_low < inner_high else after[:0]
        parts = [part for part in (before, inner, after) if part.nbytes]
        try:
            n = os.preadv(self._fd, parts, _data_offset(self.size) + low)
        except OSError as exc:
            raise DamagedEntry(f"the cached file of {self.key}: {exc}") from exc
        if n != high - low:
            raise DamagedEntry(f"the cached file of {self.key} is cut short")
        index = 0
        for part in parts:
            for at in range(0, part.nbytes, SEGMENT_BYTES):
                segment = part[at : at + SEGMENT_BYTES]
                if _checksum(self.key, first + index, segment) != checksums[index]:
                    raise DamagedEntry(f"segment {first + index} of the cached {self.key}")
                index += 1
        if before.nbytes:
            piece = before[start - low : end - low]
            out[: piece.nbytes] = piece
        if after.nbytes:
            out[inner_high - start :] = after[: end - inner_high]


def table_bytes(size: int) -> int:
    """The most bytes on the disk that the file of an object takes beside the object's bytes."""
    return _data_offset(size) + 4096


def _data_offset(size: int) -> int:
    table = -(-size // SEGMENT_BYTES) * 8
    return _TABLE + -(-table // 4096) * 4096


def _segments(start: int, end: int) -> tuple[int, int]:
    return start // SEGMENT_BYTES, -(-end // SEGMENT_BYTES)


def _runs(
    table: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> list[tuple[int, int, bool]]:
    """(first, end, whether they are there) of neighbouring segments that are alike."""
    if not len(table):
        return []
    is_there = table != 0
    ends = [*(np.flatnonzero(is_there[1:] != is_there[:-1]) + 1).tolist(), len(table)]
    runs, begin = [], 0
    for end in ends:
        runs.append((begin, end, bool(is_there[begin])))
        begin = end
    return runs


def _header(key: str, size: int) -> bytes:
    digest = xxhash.xxh3_64_intdigest(_HEADER.pack(_MAGIC, size, 0) + key.encode())
    return _HEADER.pack(_MAGIC, size, digest)


def _checksum(key: str, index: int, segment: memoryview) -> int:
    seed = xxhash.xxh3_64_intdigest(key.encode(), seed=index)
    return xxhash.xxh3_64_intdigest(segment, seed=seed)
