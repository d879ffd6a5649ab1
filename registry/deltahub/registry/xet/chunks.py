"""One chunk of a xorb: eight bytes of header, then its bytes, perhaps compressed.

| offset | size | field |
|---|---|---|
| 0 | 1 | version, 0 |
| 1 | 3 | stored bytes behind the header, little-endian |
| 4 | 1 | scheme: 0 as they are, 1 an LZ4 frame, 2 bytes of equal place modulo 4 grouped, then LZ4 |
| 5 | 3 | bytes of the chunk, little-endian |
"""

from dataclasses import dataclass
from typing import Final

import lz4.frame
import numpy as np

from deltahub.registry.errors import InvalidRequest

HEADER_BYTES: Final = 8
MAX_CHUNK_BYTES: Final = 128 << 10
# The reference decoder's bound; encoders store as it is what would grow.
MAX_STORED_BYTES: Final = 2 * MAX_CHUNK_BYTES

_NONE, _LZ4, _GROUPED_LZ4 = range(3)
_N_GROUPS: Final = 4


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What a header says. stored, size: bytes behind the header, and of the chunk."""

    stored: int
    scheme: int
    size: int

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "ChunkHeader":
        """The header in the first eight bytes; InvalidRequest for what no encoder writes."""
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
    """Decodes chunks, one after another. For one thread."""

    def __init__(self) -> None:
        self._lz4 = lz4.frame.LZ4FrameDecompressor()

    def decode(self, header: ChunkHeader, stored: bytes | memoryview) -> bytes | memoryview:
        """The chunk's bytes, `header.size` of them; InvalidRequest for what does not decode.

        stored: the bytes behind the header, `header.stored` of them.
        """
        if header.scheme == _NONE:
            return stored
        raw = self._decompress(stored, header.size)
        return raw if header.scheme == _LZ4 else _regrouped(raw)

    def _decompress(self, stored: bytes | memoryview, size: int) -> bytes:
        # Never more than one byte too many, whatever the frame says of itself.
        try:
            raw = self._lz4.decompress(stored, max_length=size + 1)
            is_over = self._lz4.eof and not self._lz4.unused_data
        except (RuntimeError, ValueError, EOFError) as exc:
            raise InvalidRequest(f"a chunk is no LZ4 frame: {exc}") from exc
        finally:
            self._lz4.reset()
        if len(raw) != size or not is_over:
            raise InvalidRequest(f"a chunk of {size} bytes decodes to another number of bytes")
        assert isinstance(raw, bytes)
        return raw


def _regrouped(raw: bytes) -> memoryview:
    """Bytes 0, 4, 8... come first in `raw`, then 1, 5, 9..., and so on; here in their order."""
    grouped = np.frombuffer(raw, np.uint8)
    out = np.empty(len(raw), np.uint8)
    start = 0
    for group in range(_N_GROUPS):
        places = out[group::_N_GROUPS]
        places[:] = grouped[start : start + places.size]
        start += places.size
    return out.data
