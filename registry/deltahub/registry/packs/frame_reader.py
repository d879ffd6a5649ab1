"""Reads frames from packs: their parsed prefixes and the stored bytes of their blocks."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from deltahub.codecs.errors import CodecError, CorruptFrame
from deltahub.codecs.frames import FrameHeader, FrameView, parse_header, peek_header_length
from deltahub.registry.errors import DataLost
from deltahub.registry.losses import second_copies
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.packs.buffers import allocate_buffer
from deltahub.registry.packs.locations import FrameLocation
from deltahub.registry.storage.base import ObjectNotFound, ShortObject
from deltahub.registry.storage.keys import pack_key

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# A frame of at most this many bytes is read with one read.
PROBE_BYTES = 64 << 10
# Bytes that frames.peek_header_length needs.
PEEK_BYTES = 16
# Frames of at most SMALL_BYTES that lie close together are prefetched by one read of at most
# SPAN_BYTES, which may skip gaps of at most GAP_BYTES.
SMALL_BYTES = 8 << 10
SPAN_BYTES = 1 << 20
GAP_BYTES = 16 << 10
# How long, in seconds, a pack is read from its second copy before its own object is tried again,
# and how many packs are.
COPIED_S = 60.0
MOST_COPIED = 1000


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """A frame whose prefix has been read and checked. whole: all bytes of a short frame, or b""."""

    location: FrameLocation
    view: FrameView
    whole: bytes

    @property
    def place(self) -> tuple[str, int]:
        """(pack id, offset in the pack): identifies the frame as long as the pack exists."""
        return self.location.pack_id, self.location.offset

    @property
    def memory_bytes(self) -> int:
        # The parsed block table takes about four times its stored bytes.
        return 600 + 4 * self.view.header.prefix_length + len(self.whole)

    def sizes(self, begin: int, stop: int) -> list[int]:
        """Decoded sizes in bytes of the blocks [begin, stop)."""
        return self.view.geometry.block_sizes(begin, stop - begin)

    def block_range(self, byte: int, want: int) -> tuple[int, int]:
        """Blocks [begin, stop) that cover bytes [byte, want) of the frame; at least one block."""
        begin = self.view.block_of_byte(byte)
        last = self.view.block_of_byte(min(max(want, byte + 1), self.location.size) - 1)
        return begin, last + 1


class DamagedFrame(DataLost):
    """Stored bytes of a frame are damaged."""


class codec_errors_as_data_loss:
    """A context in which a CodecError of stored bytes is raised as DataLost."""

    # A class, because a contextlib generator would be slower and every block range enters this.
    __slots__ = ("_pack_id",)

    def __init__(self, pack_id: str) -> None:
        self._pack_id = pack_id

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        if isinstance(exc, CodecError):
            message = f"pack {self._pack_id}: {exc}; run deltahub fsck --read-data"
            raise (DamagedFrame if isinstance(exc, CorruptFrame) else DataLost)(message) from exc


class FrameReader:
    """Reads frames for one process. It caches parsed prefixes, up to `cache_bytes`."""

    def __init__(self, registry: "Registry", cache_bytes: int, *, is_serving: bool = False) -> None:
        """is_serving: read the copies of packs on this machine, if the store has any there."""
        self._registry = registry
        self._store = registry.store
        self.is_serving = is_serving
        # (pack, offset) -> when the frame there was found to be damaged: it is read from the second
        # copy of its pack. By frame, because another frame may be damaged in the copy.
        self._copied: dict[tuple[str, int], float] = {}
        self._frames: ByteCache[tuple[str, int], OpenFrame] = ByteCache(cache_bytes)

    def open(self, location: FrameLocation) -> OpenFrame:
        """The frame with its prefix parsed.

        ObjectNotFound if the pack is gone. DataLost if the prefix is damaged, or is the prefix of
        another frame than the one that `location` describes.
        """
        opened = self._frames.get((location.pack_id, location.offset))
        if opened is None:
            try:
                opened = self._read_prefix(location)
            except DataLost:
                if not self.is_serving:
                    raise
                opened = self._read_prefix(location, is_fresh=True)
                self._store.forget(pack_key(location.pack_id))
            self._keep(opened)
        elif opened.location != location:  # cached for another row
            _check_place(location, opened.view.header)
        return opened

    def turn_to_copy(self, location: FrameLocation, why: Exception, is_noted: bool) -> bool:
        """Read a damaged frame from the second copy of its pack for the next minute.

        False without a copy, or if the copy is read already. is_noted: scrub is told to put the
        pack back.
        """
        pack_id, place = location.pack_id, (location.pack_id, location.offset)
        if self._is_copied(*place) or not second_copies.is_there(self._registry, pack_id):
            return False
        if len(self._copied) >= MOST_COPIED:
            self._copied.clear()
        self._copied[place] = time.monotonic()
        log.error("a frame of pack %s is read from its second copy: %s", pack_id, why)
        if is_noted:
            second_copies.ask_for_repair(self._registry, pack_id, why)
        return True

    def _is_copied(self, pack_id: str, offset: int) -> bool:
        since = self._copied.get((pack_id, offset))
        return since is not None and time.monotonic() - since < COPIED_S

    def _key(self, location: FrameLocation) -> str:
        if self._copied and self._is_copied(location.pack_id, location.offset):
            copy = second_copies.key_of(self._registry, location.pack_id)
            return copy or pack_key(location.pack_id)
        return pack_key(location.pack_id)

    def reread(self, frame: OpenFrame) -> OpenFrame:
        """The frame without the caches. Cached bytes of a short frame may have been damaged."""
        self._frames.forget(frame.place)
        if not frame.whole:
            return frame
        fresh = self._read_prefix(frame.location, is_fresh=True)
        if fresh.whole != frame.whole:
            self._store.forget(pack_key(frame.location.pack_id))
        self._keep(fresh)
        return fresh

    def reread_stored(
        self, frame: OpenFrame, begin: int, stop: int, stored: memoryview
    ) -> memoryview | None:
        """What the store has of these blocks, if that is not `stored`; else None."""
        if frame.whole or not self.is_serving:
            return None
        first, end = frame.view.stored_span(begin, stop)
        fresh = self.read(frame.location, first, end - first, is_fresh=True)
        if fresh == stored:
            return None
        self._store.forget(pack_key(frame.location.pack_id))
        return fresh

    def prefetch(self, locations: Iterable[FrameLocation]) -> None:
        """Read small frames that lie close together, one span per read. Errors are ignored."""
        small = sorted(
            (each for each in locations if each.length <= SMALL_BYTES and not self._is_open(each)),
            key=lambda each: (each.pack_id, each.offset),
        )
        spans = list(_spans(small))
        if self.is_serving:
            for span in spans:
                end = span[-1].offset + span[-1].length
                self._store.prefetch(pack_key(span[0].pack_id), span[0].offset, end)
        for span in spans:
            first, last = span[0], span[-1]
            data = bytearray(last.offset + last.length - first.offset)
            try:
                self._get_into(first, 0, memoryview(data))
                for each in span:
                    begin = each.offset - first.offset
                    opened = _parse_whole(each, bytes(data[begin : begin + each.length]))
                    self._keep(opened)
            except (ObjectNotFound, ShortObject, CodecError, DataLost):
                continue  # open() will report the error

    def stored(self, frame: OpenFrame, begin: int, stop: int) -> memoryview:
        """The stored bytes of blocks [begin, stop), in one read."""
        first, end = frame.view.stored_span(begin, stop)
        if frame.whole:
            return memoryview(frame.whole)[first:end]
        return self.read(frame.location, first, end - first)

    def read(
        self, location: FrameLocation, start: int, n: int, *, is_fresh: bool = False
    ) -> memoryview:
        """The stored bytes [start, start + n) of a frame; DataLost if the pack ends before.

        is_fresh: from the store itself.
        """
        if start + n > location.length:
            raise DataLost(f"a frame of pack {location.pack_id} is cut short; run deltahub fsck")
        out = allocate_buffer(n)
        if n == 0:
            return out
        try:
            self._get_into(location, start, out, is_fresh=is_fresh)
        except ShortObject as exc:
            raise DamagedFrame(f"pack {location.pack_id} is cut short; run deltahub fsck") from exc
        return out

    def _get_into(
        self, location: FrameLocation, start: int, out: memoryview, *, is_fresh: bool = False
    ) -> None:
        """Fill `out` from byte `start` of the frame on, perhaps with bytes behind it."""
        key, offset = self._key(location), location.offset + start
        if self.is_serving and not is_fresh:
            self._store.get_cached_into(key, offset, out)
        else:
            self._store.get_into(key, offset, out)

    def _is_open(self, location: FrameLocation) -> bool:
        return self._frames.get((location.pack_id, location.offset)) is not None

    def _keep(self, frame: OpenFrame) -> None:
        self._frames.put(frame.place, frame, frame.memory_bytes)

    def _read_prefix(self, location: FrameLocation, *, is_fresh: bool = False) -> OpenFrame:
        with codec_errors_as_data_loss(location.pack_id):
            return self._parse_prefix(location, partial(self.read, location, is_fresh=is_fresh))

    def _parse_prefix(
        self, location: FrameLocation, read: Callable[[int, int], memoryview]
    ) -> OpenFrame:
        head = bytearray(read(0, min(PROBE_BYTES, location.length)))
        if len(head) == location.length:
            return _parse_whole(location, bytes(head))
        header_length = peek_header_length(head[:PEEK_BYTES])
        if header_length > len(head):
            head += read(len(head), header_length - len(head))
        header = parse_header(head[:header_length])
        if header.prefix_length > len(head):
            head += read(len(head), header.prefix_length - len(head))
        view = FrameView.parse(bytes(head[: header.prefix_length]))
        _check_place(location, header)
        return OpenFrame(location, view, b"")


def _parse_whole(location: FrameLocation, data: bytes) -> OpenFrame:
    view = FrameView.parse(data)
    _check_place(location, view.header)
    return OpenFrame(location, view, data)


def _check_place(location: FrameLocation, header: FrameHeader) -> None:
    is_right = (
        header.tensor == location.tensor
        and header.start_byte == location.start
        and header.size_bytes == location.size
        and header.frame_length == location.length
    )
    if not is_right:
        raise DataLost(
            f"pack {location.pack_id} holds another frame at {location.offset} than its row says;"
            " run deltahub fsck"
        )


def _spans(ordered: Iterable[FrameLocation]) -> Iterator[list[FrameLocation]]:
    """Groups of neighbouring frames, each group to be read by one read."""
    span: list[FrameLocation] = []
    for each in ordered:
        if span and (
            each.pack_id != span[0].pack_id
            or each.offset - (span[-1].offset + span[-1].length) > GAP_BYTES
            or each.offset + each.length - span[0].offset > SPAN_BYTES
        ):
            yield span
            span = []
        span.append(each)
    if len(span) > 1:
        yield span
