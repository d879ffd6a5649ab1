"""Any stored file as Xet clients download files: as xorbs that are made while they are read.

A file is cut every 64 MiB, each part is a xorb of chunks of 128 KiB that are stored as they are.
Clients take the hashes for names: that of the file is its SHA-256, a xorb's is made of it.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from deltahub.registry.xet.chunks import HEADER_BYTES

CHUNK_BYTES: Final = 128 << 10
XORB_CHUNKS: Final = 512
_XORB_BYTES: Final = CHUNK_BYTES * XORB_CHUNKS
_STORED_BYTES: Final = HEADER_BYTES + CHUNK_BYTES

ReadFile = Callable[[int, int], Iterator[memoryview]]


@dataclass(frozen=True)
class VirtualTerm:
    """Chunks [first, end) of a xorb: `size` bytes of the file, stored in [stored, stored_end)."""

    xorb: int
    first: int
    end: int
    size: int

    @property
    def stored(self) -> int:
        return self.first * _STORED_BYTES

    @property
    def stored_end(self) -> int:
        return self.stored + (self.end - self.first) * HEADER_BYTES + self.size


@dataclass(frozen=True)
class VirtualFile:
    """The layout of a file of `size` bytes, at least one."""

    sha256: str
    size: int

    def xorb_name(self, xorb: int) -> str:
        """The hash by which clients know a xorb."""
        return hashlib.sha256(f"deltahub xorb {self.sha256} {xorb}".encode()).hexdigest()

    def terms(self, start: int, end: int) -> Iterator[VirtualTerm]:
        """The terms with bytes [start, end) of the file, in whole chunks; 0 <= start < end."""
        for xorb in range(start // _XORB_BYTES, -(-end // _XORB_BYTES)):
            begin = xorb * _XORB_BYTES
            first = max(0, start - begin) // CHUNK_BYTES
            last = min(-(-(end - begin) // CHUNK_BYTES), XORB_CHUNKS)
            size = min(begin + last * CHUNK_BYTES, self.size) - begin - first * CHUNK_BYTES
            yield VirtualTerm(xorb, first, last, size)

    def stored_bytes(self, xorb: int) -> int:
        """Bytes of a whole xorb as it travels."""
        size = min(_XORB_BYTES, self.size - xorb * _XORB_BYTES)
        return size + -(-size // CHUNK_BYTES) * HEADER_BYTES

    def read(self, xorb: int, start: int, end: int, read: ReadFile) -> Iterator[memoryview]:
        """Bytes [start, end) of a xorb as it travels, in pieces of any size.

        read(start, end): yields these bytes of the file.
        """
        first, skipped = divmod(start, _STORED_BYTES)
        base = xorb * _XORB_BYTES
        file_start = base + first * CHUNK_BYTES
        # All chunks that are touched, whole.
        file_end = min(base + -(-end // _STORED_BYTES) * CHUNK_BYTES, self.size)
        left = end - start
        for piece in self._framed(file_start, file_end, read):
            view = piece[skipped:]
            skipped = max(0, skipped - piece.nbytes)
            if view:
                yield view[:left]
                left -= min(left, view.nbytes)
            if left == 0:
                return

    def _framed(self, start: int, end: int, read: ReadFile) -> Iterator[memoryview]:
        """Bytes [start, end) of the file, from the begin of a chunk on, with headers."""
        position = start
        for piece in read(start, end):
            done = 0
            while done < piece.nbytes:
                in_chunk = position % CHUNK_BYTES
                if in_chunk == 0:
                    size = min(CHUNK_BYTES, self.size - position).to_bytes(3, "little")
                    yield memoryview(b"\0" + size + b"\0" + size)
                taken = piece[done : done + CHUNK_BYTES - in_chunk]
                yield taken
                done += taken.nbytes
                position += taken.nbytes
