"""Xorbs: up to 64 MiB of chunks. Decodes a xorb that is uploaded, and makes its index."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltahub.registry.errors import HashMismatch, InvalidRequest, LimitExceeded
from deltahub.registry.storage.base import Buffer
from deltahub.registry.xet.chunks import HEADER_BYTES, ChunkDecoder, ChunkHeader
from deltahub.registry.xet.hashes import HASH_BYTES, Merkle, chunk_hash, to_text

MAX_CHUNKS: Final = 8192
MAX_XORB_BYTES: Final = 64 << 20
# Older clients send an index after the chunks. The hub ignores it.
_FOOTER_MARK: Final = b"XETBLOB"
_MAX_FOOTER_BYTES: Final = 1 << 20
MAX_BODY_BYTES: Final = MAX_XORB_BYTES + MAX_CHUNKS * HEADER_BYTES + _MAX_FOOTER_BYTES

# hash of the chunk, bytes of the chunk
_ENTRY: Final = struct.Struct("<32sI")
ENTRY_BYTES: Final = _ENTRY.size


@dataclass(frozen=True)
class XorbIndex:
    """The chunks of a xorb, or of a part of it, in order. data: 36 bytes for each chunk."""

    data: bytes

    def __post_init__(self) -> None:
        assert len(self.data) % _ENTRY.size == 0

    @property
    def n_chunks(self) -> int:
        return len(self.data) // _ENTRY.size

    def part(self, first: int, end: int) -> "XorbIndex":
        """The chunks [first, end)."""
        return XorbIndex(self.data[first * _ENTRY.size : end * _ENTRY.size])

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """(hash, size in bytes) of each chunk."""
        yield from _ENTRY.iter_unpack(self.data)

    def hashes(self) -> bytes:
        """The hashes of the chunks, concatenated."""
        return self.columns()["hash"].tobytes()

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return int(self.columns()["size"].sum(dtype=np.int64))

    def columns(self) -> np.ndarray:
        """The chunks as an array with the fields hash and size."""
        fields = [("hash", f"V{HASH_BYTES}"), ("size", "<u4")]
        return np.frombuffer(self.data, np.dtype(fields))


class RootDigest:
    """The hash of a xorb from its stored bytes, which come piece by piece. Memory: one chunk."""

    def __init__(self, index: XorbIndex) -> None:
        self._sizes = (size for _, size in index.entries())
        self._size = next(self._sizes, 0)
        self._chunk = bytearray()
        self._tree = Merkle()
        self._is_longer = False

    def update(self, data: Buffer, /) -> None:
        view = memoryview(data).cast("B")
        while view:
            if not self._size:
                self._is_longer = True
                return
            piece = view[: self._size - len(self._chunk)]
            self._chunk += piece
            view = view[piece.nbytes :]
            if len(self._chunk) == self._size:
                self._tree.update([(chunk_hash(self._chunk), self._size)])
                self._chunk.clear()
                self._size = next(self._sizes, 0)

    def digest(self) -> bytes:
        """Empty if the bytes do not end where a chunk does, or are more than the index says."""
        return b"" if self._is_longer or self._chunk else self._tree.root()


class XorbCheck:
    """Decodes and hashes the chunks of a xorb during upload. Memory: one block and one chunk.

    InvalidRequest, LimitExceeded, HashMismatch if the bytes are no xorb of the expected hash.
    """

    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._decoder = ChunkDecoder()
        self._rest = b""
        self._index: list[bytes] = []
        self._tree = Merkle()
        self._size = 0
        # Bytes of the footer received; None before the footer.
        self._footer: int | None = None

    def take(self, block: bytes) -> Iterator[bytes | memoryview]:
        """The decoded chunks that end in this block. Each is valid until the next is taken."""
        left = memoryview(block)
        while left:
            if self._footer is not None:
                self._skip(left)
                return
            begun = self._rest
            # Copies only the bytes of a chunk that spans two blocks.
            data = memoryview(begun + left[: _missing(begun)]) if begun else left
            header, end = None, HEADER_BYTES
            if len(data) >= HEADER_BYTES:
                if bytes(data[: len(_FOOTER_MARK)]) == _FOOTER_MARK:
                    self._footer, self._rest = len(begun), b""
                    continue
                header = ChunkHeader.parse(data)
                end += header.stored
            left = left[min(end, len(data)) - len(begun) :]
            if header is None or end > len(data):
                self._rest = bytes(data)
            else:
                self._rest = b""
                yield self._add(header, data[HEADER_BYTES:end])

    def finish(self) -> XorbIndex:
        """The index of the whole xorb; HashMismatch unless it has the expected hash."""
        if self._rest:
            raise InvalidRequest("the xorb ends within a chunk")
        if not self._index:
            raise InvalidRequest("the xorb has no chunks")
        found = self._tree.root()
        if found != self._expected:
            raise HashMismatch(
                f"the chunks sent are those of xorb {to_text(found)}, not of "
                f"{to_text(self._expected)}"
            )
        return XorbIndex(b"".join(self._index))

    def _add(self, header: ChunkHeader, stored: memoryview) -> bytes | memoryview:
        if len(self._index) == MAX_CHUNKS:
            raise LimitExceeded(f"the xorb has more than {MAX_CHUNKS} chunks")
        self._size += header.size
        if self._size > MAX_XORB_BYTES:
            raise LimitExceeded(f"the xorb decodes to more than {MAX_XORB_BYTES} bytes")
        chunk = self._decoder.decode(header, stored)
        digest = chunk_hash(chunk)
        self._tree.update([(digest, header.size)])
        self._index.append(_ENTRY.pack(digest, header.size))
        return chunk

    def _skip(self, left: memoryview) -> None:
        assert self._footer is not None
        self._footer += len(left)
        if self._footer > _MAX_FOOTER_BYTES:
            raise LimitExceeded(f"the xorb's footer has more than {_MAX_FOOTER_BYTES} bytes")


def _missing(begun: bytes) -> int:
    """Missing bytes of the header of a begun chunk; if the header is complete, of the chunk."""
    if len(begun) < HEADER_BYTES:
        return HEADER_BYTES - len(begun)
    return HEADER_BYTES + ChunkHeader.parse(begun).stored - len(begun)
