"""Packs: many frames in one immutable object, with an index at its end. Format: spec/pack.md."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Final

from blake3 import blake3

from deltahub.codecs.errors import CorruptPack, InvalidInput, TooLarge, UnsupportedVersion
from deltahub.codecs.frames.header import FIXED, parse_header
from deltahub.codecs.protocol import Buffer

PACK_MAGIC: Final = b"DHPK"
PACK_VERSION: Final = 1
END_MAGIC: Final = b"KPHD"
MAX_PACK: Final = 128 << 20

HEADER: Final = PACK_MAGIC + bytes([PACK_VERSION]) + bytes(11)
INDEX_ROW: Final = struct.Struct("<QQ32s")
_COUNTS: Final = struct.Struct("<QI4x")
_HASH_BYTES: Final = 32
_TAIL: Final = _HASH_BYTES + len(END_MAGIC)
TRAILER_BYTES: Final = _COUNTS.size + _TAIL

# Bytes of a pack besides its frames: a fixed number, and one index row for each frame.
PACK_FIXED_BYTES: Final = len(HEADER) + TRAILER_BYTES
PACK_INDEX_BYTES: Final = INDEX_ROW.size

# The shortest frame: header, its checksum, one row of the block table, a checksum, one byte.
_MIN_FRAME: Final = FIXED.size + 8 + 16 + 8 + 1
_MIN_PACK: Final = PACK_FIXED_BYTES + PACK_INDEX_BYTES + _MIN_FRAME


def live_pack_bytes(n_frames: int, frame_bytes: int) -> int:
    """The size of a pack of `n_frames` frames that have `frame_bytes` bytes together."""
    return PACK_FIXED_BYTES + n_frames * PACK_INDEX_BYTES + frame_bytes


@dataclass(frozen=True)
class PackEntry:
    """Where one frame lies in a pack, and the id of the tensor that it belongs to."""

    offset: int
    length: int
    tensor: bytes


@dataclass(frozen=True)
class PackSummary:
    """A finished pack: bytes, BLAKE3 of all of them, frames."""

    size: int
    hash: bytes
    n_frames: int


class PackWriter:
    """Writes one pack to `sink`, front to back, and keeps only the index in memory."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._hash = blake3()
        self._offset = 0
        self._index: list[PackEntry] = []
        self._write(HEADER)

    @property
    def size(self) -> int:
        """Bytes of the pack if it were finished now."""
        return self._offset + len(self._index) * INDEX_ROW.size + TRAILER_BYTES

    @property
    def n_frames(self) -> int:
        return len(self._index)

    def fits(self, frame_length: int) -> bool:
        """Whether a frame of this length can still be added."""
        return self.size + frame_length + INDEX_ROW.size <= MAX_PACK

    def add(self, frame: Buffer) -> int:
        """Appends a whole frame and returns its offset. TooLarge if the pack has no room for it."""
        view = memoryview(frame).cast("B")
        header = parse_header(view)
        if header.frame_length != len(view):
            raise InvalidInput(f"{len(view)} bytes for a frame of {header.frame_length}")
        if not self.fits(len(view)):
            raise TooLarge(f"the pack would exceed {MAX_PACK} bytes; begin another")
        entry = PackEntry(self._offset, len(view), header.tensor)
        self._write(view)
        self._index.append(entry)
        return entry.offset

    def finish(self) -> PackSummary:
        """Writes index and trailer. InvalidInput if no frame was added: a pack is never empty."""
        if not self._index:
            raise InvalidInput("a pack has at least one frame")
        index_offset = self._offset
        self._write(b"".join([INDEX_ROW.pack(e.offset, e.length, e.tensor) for e in self._index]))
        self._write(_COUNTS.pack(index_offset, len(self._index)))
        self._write(self._hash.digest())
        self._write(END_MAGIC)
        return PackSummary(self._offset, self._hash.digest(), len(self._index))

    def _write(self, data: Buffer) -> None:
        self._sink.write(data)
        self._hash.update(data)
        self._offset += len(data)


def read_index(read_at: Callable[[int, int], Buffer], size: int) -> list[PackEntry]:
    """The frames of a pack of `size` bytes, in order. CorruptPack if header, index or trailer are
    invalid; UnsupportedVersion for a pack of another version.

    read_at(offset, length) returns exactly these bytes of the pack. Only header, index and trailer
    are read; verify_pack_hash covers the frames between them.
    """
    if not _MIN_PACK <= size <= MAX_PACK:
        raise CorruptPack(f"a pack of {size} bytes; {_MIN_PACK} to {MAX_PACK} are allowed")
    header = bytes(_read(read_at, 0, len(HEADER)))
    if not header.startswith(PACK_MAGIC):
        raise CorruptPack("this does not begin like a pack")
    version = header[len(PACK_MAGIC)]
    if version != PACK_VERSION:
        raise UnsupportedVersion(f"pack version {version}; this release reads {PACK_VERSION}")
    if header != HEADER:
        raise CorruptPack("the unused bytes of the pack's header are not zero")
    trailer = bytes(_read(read_at, size - TRAILER_BYTES, TRAILER_BYTES))
    index_offset, n_frames = _COUNTS.unpack_from(trailer)
    if not trailer.endswith(END_MAGIC) or _COUNTS.pack(index_offset, n_frames) != trailer[:16]:
        raise CorruptPack("this does not end like a pack: cut off, or written over")
    index_length = n_frames * INDEX_ROW.size
    if n_frames < 1 or index_offset + index_length + TRAILER_BYTES != size:
        raise CorruptPack(f"an index of {n_frames} frames at {index_offset} does not fit the pack")
    index = _read(read_at, index_offset, index_length)
    entries = [PackEntry(*row) for row in INDEX_ROW.iter_unpack(index)]
    end = len(HEADER)
    for entry in entries:
        if entry.offset != end or entry.length < _MIN_FRAME:
            raise CorruptPack(f"the frame at {entry.offset} does not begin where the last ends")
        end += entry.length
    if end != index_offset:
        raise CorruptPack("the frames do not end where the index begins")
    return entries


def verify_pack_hash(chunks: Iterable[Buffer]) -> bytes:
    """BLAKE3 of a whole pack, given as chunks; CorruptPack if its trailer names another hash."""
    covered, whole, tail = blake3(), blake3(), b""
    for chunk in chunks:
        whole.update(chunk)
        view = memoryview(chunk).cast("B")
        if len(view) >= _TAIL:
            covered.update(tail)
            covered.update(view[:-_TAIL])
            tail = bytes(view[-_TAIL:])
        else:
            joined = tail + bytes(view)
            covered.update(joined[:-_TAIL])
            tail = joined[-_TAIL:]
    if tail != covered.digest() + END_MAGIC:
        raise CorruptPack("the pack's bytes do not have the hash that its trailer names")
    return whole.digest()


def _read(read_at: Callable[[int, int], Buffer], offset: int, length: int) -> Buffer:
    data = read_at(offset, length)
    if len(data) != length:
        raise CorruptPack(f"{len(data)} bytes at {offset} of the pack, not {length}")
    return data
