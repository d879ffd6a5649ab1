"""Blocks of bases as they are decoded, on the local disk, for the next difference from them.

A base is decoded again for every fine-tune of it that somebody downloads; to read its words takes
less. What is kept here has no name on the disk and ends with the process. Nobody
trusts it: whoever decodes a difference against it checks what comes out, as against any base.
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

# (pack, offset of the frame in it): packs never change.
FrameKey: TypeAlias = tuple[str, int]

# What is kept and let go of at once, at least: each such file is one that the process has open,
# which may have a thousand, connections included.
SEGMENT_BYTES: Final = 64 << 20
_MAX_SEGMENTS: Final = 128
# Smaller blocks are decoded in the time that a read takes.
MIN_BLOCK_BYTES: Final = 64 << 10
# A segment that was used this short a time ago stays. Bases that do not fit all together would
# otherwise drive each other out, and none be there when it is wanted.
KEEP_RECENT_S: Final = 600.0
# Frames of which is remembered which blocks were decoded once.
_MAX_SEEN_FRAMES: Final = 1 << 14


class _Segment:
    """A file without a name. It is gone with the last reference to this."""

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
    """Keeps what was decoded at least twice, up to `limit_bytes`. Safe to share between threads.

    It takes no more of the disk than would leave limit_bytes free there, and lets go of it again
    when others take that (leave_room). When the disk fails, or what it gives back was changed, it
    says so in the log and keeps nothing any more.
    """

    def __init__(self, disk: Disk, folder: Path, limit_bytes: int) -> None:
        """folder: where its files go for a moment, until they lose their names."""
        self._disk = disk
        self._folder = folder
        self._limit = limit_bytes
        self._segment_bytes = max(SEGMENT_BYTES, -(-limit_bytes // _MAX_SEGMENTS))
        self._lock = Lock()
        self._writing = Lock()
        self._is_on = limit_bytes >= SEGMENT_BYTES
        self._places: dict[FrameKey, dict[int, _Place]] = {}
        self._segments: list[_Segment] = []
        # frame -> its blocks that were decoded once, a bit each
        self._seen: OrderedDict[FrameKey, int] = OrderedDict()
        self._read_bytes = 0

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def read_bytes(self) -> int:
        return self._read_bytes

    def read_into(self, frame: FrameKey, block: int, skip: int, out: memoryview) -> int:
        """Fill the beginning of `out` from byte `skip` of a block on, and from the blocks after it.

        Returns how many bytes; 0 where the block is not kept.
        """
        if not self._places:
            return 0
        runs = self._find(frame, block, skip, out.nbytes)
        position = 0
        for segment, offset, size in runs:
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
        """Blocks from `block` on that were just decoded, of these sizes, back to back in `data`.

        Those are written that somebody else has decoded before.
        """
        if not self._is_on or not self._writing.acquire(blocking=False):
            return  # who writes at this moment will not be waited for
        try:
            for first, end, begin, stop in self._wanted(frame, block, sizes):
                self._write(frame, first, sizes[first - block : end - block], data[begin:stop])
        except OSError as exc:
            self.disable(f"writing failed: {exc}")
        finally:
            self._writing.release()

    def leave_room(self) -> None:
        """Let go of what was read least lately, until limit_bytes are free on the disk again.

        For who looks from time to time: uploads that find no room must not fail for this.
        """
        if not self._segments:
            return
        try:
            missing = self._limit - shutil.disk_usage(self._folder).free
        except OSError as exc:
            self.disable(f"looking at the disk failed: {exc}")
            return
        with self._lock:
            # By a name, so that files are closed once the lock is free.
            oldest_first = sorted(self._segments, key=lambda segment: segment.used_at)
            for segment in oldest_first:
                if missing <= 0:
                    return
                missing -= segment.size
                self._drop(segment)

    def disable(self, reason: str) -> None:
        """Keeps nothing from now on."""
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
        """(segment, offset, bytes) of what is kept from there on; neighbours as one."""
        runs: list[tuple[_Segment, int, int]] = []
        now = time.monotonic()
        with self._lock:
            places = self._places.get(frame, {})
            while wanted and (place := places.get(block)) is not None:
                size = min(place.size - skip, wanted)
                offset = place.offset + skip
                if runs and runs[-1][0] is place.segment and sum(runs[-1][1:]) == offset:
                    runs[-1] = (place.segment, runs[-1][1], runs[-1][2] + size)
                else:
                    runs.append((place.segment, offset, size))
                place.segment.used_at = now
                self._read_bytes += size
                wanted -= size
                skip = 0
                block += 1
        return runs

    def _wanted(
        self, frame: FrameKey, block: int, sizes: list[int]
    ) -> list[tuple[int, int, int, int]]:
        """(first block, end, first byte, end) of runs that were seen before and are not kept."""
        runs: list[tuple[int, int, int, int]] = []
        position = 0
        with self._lock:
            seen = self._seen.pop(frame, 0)
            places = self._places.get(frame, {})
            for index, size in enumerate(sizes, block):
                if size >= MIN_BLOCK_BYTES and index not in places:
                    if seen >> index & 1:
                        if runs and runs[-1][1] == index:
                            runs[-1] = (runs[-1][0], index + 1, runs[-1][2], position + size)
                        else:
                            runs.append((index, index + 1, position, position + size))
                    seen |= 1 << index
                position += size
            if seen:
                self._seen[frame] = seen
            if len(self._seen) > _MAX_SEEN_FRAMES:
                self._seen.popitem(last=False)
        return runs

    def _write(self, frame: FrameKey, block: int, sizes: list[int], data: memoryview) -> None:
        """Appends blocks to the newest segment, or to a new one; nothing where there is no room."""
        segment = self._room(data.nbytes)
        if segment is None:
            return
        self._disk.write(segment.fd, data)
        with self._lock:
            if segment not in self._segments:
                return  # let go of meanwhile
            places = self._places.setdefault(frame, {})
            for index, size in enumerate(sizes, block):
                places[index] = _Place(segment, segment.size, size)
                segment.keys.append((frame, index))
                segment.size += size

    def _room(self, size: int) -> _Segment | None:
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
