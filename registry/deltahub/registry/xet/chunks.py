"""One chunk of a xorb: a header of 8 bytes, then the stored bytes, compressed or not.

| offset | size | field |
|---|---|---|
| 0 | 1 | version, 0 |
| 1 | 3 | number of stored bytes after the header, little-endian |
| 4 | 1 | scheme: 0 uncompressed, 1 LZ4 frame, 2 bytes grouped by position modulo 4, then LZ4 |
| 5 | 3 | number of bytes of the chunk, little-endian |
"""

import struct
from dataclasses import dataclass
from typing import Final

import lz4.block
import lz4.frame

from deltahub.codecs import join_byte_groups
from deltahub.registry.errors import InvalidRequest

HEADER_BYTES: Final = 8
MAX_CHUNK_BYTES: Final = 128 << 10
# The limit of the reference decoder. Encoders do not compress a chunk that would grow.
MAX_STORED_BYTES: Final = 2 * MAX_CHUNK_BYTES

_NONE, _LZ4, _GROUPED_LZ4 = range(3)

# Headers of LZ4 frames that clients write, without size and checksums -> largest block in bytes.
# Decoding the only block of such a frame directly takes two thirds of the time.
_MAX_BLOCK_BYTES: Final = {
    bytes.fromhex("04224d18604082"): 64 << 10,
    bytes.fromhex("04224d186050fb"): 256 << 10,
}
_BLOCK_AT: Final = 7
_WORD: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """A chunk header. stored: bytes after the header. size: bytes of the chunk."""

    stored: int
    scheme: int
    size: int

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "ChunkHeader":
        """The header in the first 8 bytes; InvalidRequest if it is invalid."""
        version, scheme = data[0], data[4]
        stored = int.from_bytes(data[1:4], "little")
        size = int.from_bytes(data[5:8], "little")
        if version != 0:
            raise InvalidRequest(f"a chunk has version {version}; this hub knows version 0")
        if scheme not in (_NONE, _LZ4, _GROUPED_LZ4):
            raise InvalidRequest(f"a chunk is compressed by scheme {scheme}; this hub knows 0 to 2")
        if not 0 < size <= MAX_CHUNK_BYTES:
            raise InvalidRequest(f"a chunk has {size} bytes; it may have 1 to {MAX_CHUNK_BYTES}")
        if not 0 < stored <= MAX_STORED_BYTES:
            raise InvalidRequest(
                f"a chunk is stored in {stored} bytes; it may be in 1 to {MAX_STORED_BYTES}"
            )
        if scheme == _NONE and stored != size:
            raise InvalidRequest(f"a chunk of {size} bytes is stored as it is in {stored}")
        return cls(stored, scheme, size)


class ChunkDecoder:
    """Decodes chunks. Each is valid until the next one is decoded. For one thread."""

    def __init__(self) -> None:
        self._lz4 = lz4.frame.LZ4FrameDecompressor()
        self._out = memoryview(bytearray(MAX_CHUNK_BYTES))

    def decode(self, header: ChunkHeader, stored: memoryview) -> bytes | memoryview:
        """The chunk, `header.size` bytes; InvalidRequest if it does not decode.


        stored: the `header.stored` bytes after the header.
        """
        if header.scheme == _NONE:
            return stored
        raw = self._decompress(stored, header.size)
        if header.scheme == _LZ4:
            return raw
        out = self._out[: header.size]
        join_byte_groups(raw, out)
        return out

    def _decompress(self, stored: memoryview, size: int) -> bytes:
        try:
            if size <= _MAX_BLOCK_BYTES.get(bytes(stored[:_BLOCK_AT]), 0) and _is_one_block(stored):
                raw = lz4.block.decompress(
                    stored[_BLOCK_AT + _WORD.size : -_WORD.size], uncompressed_size=size
                )
                is_over = True
            else:
                raw, is_over = self._decompress_frame(stored, size)
        except (lz4.block.LZ4BlockError, RuntimeError, ValueError, EOFError) as exc:
            raise InvalidRequest(f"a chunk is no LZ4 frame: {exc}") from exc
        if len(raw) != size or not is_over:
            raise InvalidRequest(f"a chunk of {size} bytes decodes to another number of bytes")
        assert isinstance(raw, bytes)
        return raw

    def _decompress_frame(self, stored: memoryview, size: int) -> tuple[bytes, bool]:
        # Decodes at most one byte too many, whatever size the frame declares.
        try:
            raw = self._lz4.decompress(stored, max_length=size + 1)
            return raw, self._lz4.eof and not self._lz4.unused_data
        finally:
            self._lz4.reset()


def _is_one_block(frame: memoryview) -> bool:
    """Whether the frame is a header, one compressed block, and the end mark."""
    n_bytes = len(frame) - _BLOCK_AT - 2 * _WORD.size
    return (
        n_bytes > 0
        and _WORD.unpack_from(frame, _BLOCK_AT)[0] == n_bytes
        and _WORD.unpack_from(frame, len(frame) - _WORD.size)[0] == 0
    )
