"""A cache of decoded base blocks on the local disk, for downloads of fine-tunes.

Every download of a fine-tune needs its base decoded. Reading decoded bytes takes less time than
decoding them again. The files have no names, so they disappear with the process. Cached bytes are
not trusted: the decoder of a delta verifies the checksum of every block that it returns.
"""

import logging
import os
import secrets
import shutil
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from deltahub.registry.storage.disk import Disk

log = logging.getLogger(__name__)

# (pack id, offset of the frame in the pack). It stays valid because packs never change.
FrameKey: TypeAlias = tuple[str, int]

# Least size of a segment, which is the unit of eviction. Each segment is an open file, and a
# process may have about 1000 open files, connections included.
SEGMENT_BYTES: Final = 64 << 20
_MAX_SEGMENTS: Final = 128
# Smaller blocks are not cached, because decoding them takes no longer than a read.
MIN_BLOCK_BYTES: Final = 64 << 10
# Seconds during which a used segment is not evicted. Bases that do not fit together would otherwise
# evict each other, and no lookup would ever find its base.
KEEP_RECENT_S: Final = 600.0
# Frames for which the cache remembers which blocks were decoded once.
_MAX_SEEN_FRAMES: Final = 1 << 14


class _Segment:
    """A file without a name. It is deleted with the last reference to this object."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        path = folder / f"hot-{secrets.token_hex(8)}"
        self.fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._closing = weakref.finalize(self, disk.close, self.fd)
        disk.unlink(path)
        self.size = 0
        self.used_at = time.monotonic()
        self.keys: list[tuple[FrameKey, int]] = []


@dataclass(frozen=True, slots=True)
class _Place:
    segment: _Segment
    offset: int
    size: int


class HotBases:
    """Caches blocks that were decoded at least twice, up to `limit_bytes`. Thread-safe.

    The cache grows only while at least limit_bytes stay free on the disk, and shrinks again when
    other files take that space (leave_room). When the disk fails or returns changed bytes, the
    cache logs an error and stays empty until a restart.
    """

    def __init__(self, disk: Disk, folder: Path, limit_bytes: int) -> None:
        """folder: where each file is created, before it is unlinked."""
        self._disk = disk
        self._folder = folder
        self._limit = limit_bytes
        self._segment_bytes = max(SEGMENT_BYTES, -(-limit_bytes // _MAX_SEGMENTS))
        self._lock = Lock()
        self._writing = Lock()
        self._is_on = limit_bytes >= SEGMENT_BYTES
        self._places: dict[FrameKey, dict[int, _Place]] = {}
        self._segments: list[_Segment] = []
        # frame -> bit mask of its blocks that were decoded at least once
        self._seen: OrderedDict[FrameKey, int] = OrderedDict()
        self._read_bytes = 0

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def read_bytes(self) -> int:
        return self._read_bytes

    def has(self, frame: FrameKey) -> bool:
        """Whether any block of the frame is cached."""
        return frame in self._places

    def read_into(self, frame: FrameKey, block: int, skip: int, out: memoryview) -> int:
        """Fill the beginning of `out` from byte `skip` of `block`, then from the blocks after it.

        Returns the number of bytes that were filled: 0 if the block is not cached.
        """
        if not self._places:
            return 0
        ranges = self._find(frame, block, skip, out.nbytes)
        position = 0
        for segment, offset, size in ranges:
            try:
                n = os.preadv(segment.fd, [out[position : position + size]], offset)
            except OSError as exc:
                self.disable(f"reading failed: {exc}")
                return position
            if n != size:
                self.disable("a file was cut short")
                return position
            position += n
        return position

    def offer(self, frame: FrameKey, block: int, sizes: list[int], data: memoryview) -> None:
        """Cache those of these just decoded blocks that had been decoded before.

        The blocks begin at number `block`, have these sizes and lie back to back in `data`.
        """
        if not self._is_on or not self._writing.acquire(blocking=False):
            return  # another thread is writing, and a download must not wait for it
        try:
            for first, end, begin, stop in self._ranges_to_write(frame, block, sizes):
                self._write(frame, first, sizes[first - block : end - block], data[begin:stop])
        except OSError as exc:
            self.disable(f"writing failed: {exc}")
        finally:
            self._writing.release()

    def leave_room(self) -> None:
        """Evict the least recently used segments until limit_bytes are free on the disk.

        To be called at intervals, so that uploads do not fail because the cache fills the disk.
        """
        if not self._segments:
            return
        try:
            missing = self._limit - shutil.disk_usage(self._folder).free
        except OSError as exc:
            self.disable(f"looking at the disk failed: {exc}")
            return
        with self._lock:
            # A local variable keeps the segments alive, so that files close after the lock is free.
            oldest_first = sorted(self._segments, key=lambda segment: segment.used_at)
            for segment in oldest_first:
                if missing <= 0:
                    return
                missing -= segment.size
                self._drop(segment)

    def disable(self, reason: str) -> None:
        """Empty the cache and keep it empty until a restart."""
        with self._lock:
            if not self._is_on:
                return
            self._is_on = False
            self._places = {}
            self._segments = []
            self._seen.clear()
        log.error("decoded bases are no longer kept on this disk until a restart: %s", reason)

    def _find(
        self, frame: FrameKey, block: int, skip: int, wanted: int
    ) -> list[tuple[_Segment, int, int]]:
        """(segment, offset, size) of the cached bytes from there on; adjacent ranges are merged."""
        ranges: list[tuple[_Segment, int, int]] = []
        now = time.monotonic()
        with self._lock:
            places = self._places.get(frame, {})
            while wanted and (place := places.get(block)) is not None:
                size = min(place.size - skip, wanted)
                offset = place.offset + skip
                if ranges and ranges[-1][0] is place.segment and sum(ranges[-1][1:]) == offset:
                    ranges[-1] = (place.segment, ranges[-1][1], ranges[-1][2] + size)
                else:
                    ranges.append((place.segment, offset, size))
                place.segment.used_at = now
                self._read_bytes += size
                wanted -= size
                skip = 0
                block += 1
        return ranges

    def _ranges_to_write(
        self, frame: FrameKey, block: int, sizes: list[int]
    ) -> list[tuple[int, int, int, int]]:
        """(first block, end, first byte, end) of block ranges that were seen and are not cached."""
        ranges: list[tuple[int, int, int, int]] = []
        position = 0
        with self._lock:
            seen = self._seen.pop(frame, 0)
            places = self._places.get(frame, {})
            for index, size in enumerate(sizes, block):
                if size >= MIN_BLOCK_BYTES and index not in places:
                    if seen >> index & 1:
                        if ranges and ranges[-1][1] == index:
                            ranges[-1] = (ranges[-1][0], index + 1, ranges[-1][2], position + size)
                        else:
                            ranges.append((index, index + 1, position, position + size))
                    seen |= 1 << index
                position += size
            if seen:
                self._seen[frame] = seen
            if len(self._seen) > _MAX_SEEN_FRAMES:
                self._seen.popitem(last=False)
        return ranges

    def _write(self, frame: FrameKey, block: int, sizes: list[int], data: memoryview) -> None:
        """Append blocks to the newest segment or to a new one; nothing if the disk has no room."""
        segment = self._segment_with_room(data.nbytes)
        if segment is None:
            return
        self._disk.write(segment.fd, data)
        with self._lock:
            if segment not in self._segments:
                return  # the segment was evicted in the meantime
            places = self._places.setdefault(frame, {})
            for index, size in enumerate(sizes, block):
                places[index] = _Place(segment, segment.size, size)
                segment.keys.append((frame, index))
                segment.size += size

    def _segment_with_room(self, size: int) -> _Segment | None:
        with self._lock:
            newest = self._segments[-1] if self._segments else None
        if newest is not None and newest.size + size <= self._segment_bytes:
            return newest
        if shutil.disk_usage(self._folder).free < self._limit + self._segment_bytes:
            return None
        with self._lock:
            if (len(self._segments) + 1) * self._segment_bytes > self._limit:
                oldest = min(self._segments, key=lambda segment: segment.used_at, default=None)
                if oldest is None or time.monotonic() - oldest.used_at < KEEP_RECENT_S:
                    return None
                self._drop(oldest)
        fresh = _Segment(self._disk, self._folder)
        with self._lock:
            if not self._is_on:
                return None
            self._segments.append(fresh)
        return fresh

    def _drop(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        for frame, block in segment.keys:
            places = self._places[frame]
            del places[block]
            if not places:
                del self._places[frame]
