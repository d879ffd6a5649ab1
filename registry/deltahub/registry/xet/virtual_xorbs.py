"""Serves any stored file to Xet clients, as xorbs that are made while they are read.

A file is split every 64 MiB. Each part is a xorb of uncompressed chunks of 128 KiB. Clients use
hashes as names only: the file's hash is its SHA-256, and a xorb's hash is derived from that.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from deltahub.registry.packs.tensor_reader import RANGE_BYTES
from deltahub.registry.xet.chunks import HEADER_BYTES

CHUNK_BYTES: Final = 128 << 10
XORB_CHUNKS: Final = 512
_XORB_BYTES: Final = CHUNK_BYTES * XORB_CHUNKS
_STORED_BYTES: Final = HEADER_BYTES + CHUNK_BYTES

ReadFile = Callable[[int, int], Iterator[memoryview]]


@dataclass(frozen=True)
class VirtualTerm:
    """Chunks [first, end): `size` bytes of the file, [stored, stored_end) of the xorb."""

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
    """The xorbs of a file of `size` bytes, at least 1."""

    sha256: str
    size: int

    def xorb_name(self, xorb: int) -> str:
        """The hash that names a xorb for clients."""
        return hashlib.sha256(f"deltahub xorb {self.sha256} {xorb}".encode()).hexdigest()

    def terms(self, start: int, end: int) -> Iterator[VirtualTerm]:
        """The terms of bytes [start, end) of the file, in whole chunks; 0 <= start < end."""
        for xorb in range(start // _XORB_BYTES, -(-end // _XORB_BYTES)):
            begin = xorb * _XORB_BYTES
            first = max(0, start - begin) // CHUNK_BYTES
            last = min(-(-(end - begin) // CHUNK_BYTES), XORB_CHUNKS)
            size = min(begin + last * CHUNK_BYTES, self.size) - begin - first * CHUNK_BYTES
            yield VirtualTerm(xorb, first, last, size)

    def stored_bytes(self, xorb: int) -> int:
        """Bytes of a whole xorb with its chunk headers."""
        size = min(_XORB_BYTES, self.size - xorb * _XORB_BYTES)
        return size + -(-size // CHUNK_BYTES) * HEADER_BYTES

    def read(self, xorb: int, start: int, end: int, read: ReadFile) -> Iterator[list[memoryview]]:
        """Bytes [start, end) of a xorb as it travels, in lists of buffers that follow each other.

        read(start, end): yields these bytes of the file. Each list is made of one of its buffers,
        or of a part of RANGE_BYTES; what is between the first and the last one is headers besides.
        """
        first, skipped = divmod(start, _STORED_BYTES)
        base = xorb * _XORB_BYTES
        position = base + first * CHUNK_BYTES
        # Reads all chunks of the range as a whole.
        file_end = min(base + -(-end // _STORED_BYTES) * CHUNK_BYTES, self.size)
        left = end - start
        for piece in read(position, file_end):
            for begin in range(0, piece.nbytes, RANGE_BYTES):
                part = piece[begin : begin + RANGE_BYTES]
                views = self._framed(position, part)
                position += part.nbytes
                if skipped:
                    views, skipped = _without_first(views, skipped)
                n_bytes = sum(map(_SIZE, views))
                if n_bytes >= left:
                    yield _first(views, left)
                    return
                left -= n_bytes
                if views:
                    yield views

    def _framed(self, position: int, piece: memoryview) -> list[memoryview]:
        """`piece`, bytes of the file from `position` on, with chunk headers inserted."""
        to_next = -position % CHUNK_BYTES
        views = [piece[:to_next]] if to_next else []
        n_bytes = piece.nbytes
        # A chunk that begins after this is the last one and short.
        full_end = self.size - CHUNK_BYTES - position
        for begin in range(to_next, n_bytes, CHUNK_BYTES):
            if begin <= full_end:
                views.append(_HEADER)
            else:
                views.append(_header(self.size - position - begin))
            views.append(piece[begin : begin + CHUNK_BYTES])
        return views


def _header(size: int) -> memoryview:
    """The header of an uncompressed chunk of `size` bytes."""
    n_bytes = size.to_bytes(3, "little")
    return memoryview(b"\0" + n_bytes + b"\0" + n_bytes)


_HEADER: Final = _header(CHUNK_BYTES)
_SIZE: Final = attrgetter("nbytes")


def _without_first(views: list[memoryview], n: int) -> tuple[list[memoryview], int]:
    """(the views without their first n bytes, bytes still to skip)."""
    for i, view in enumerate(views):
        if n < view.nbytes:
            return [view[n:], *views[i + 1 :]], 0
        n -= view.nbytes
    return [], n


def _first(views: list[memoryview], n: int) -> list[memoryview]:
    """The first n bytes of views that have at least n bytes."""
    for i, view in enumerate(views):
        if n <= view.nbytes:
            return [*views[:i], view[:n]]
        n -= view.nbytes
    return views
