"""What one write hands to a socket: bytes that stay where they were decoded."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from deltahub.registry.packs.tensor_reader import FIRST_RANGE_BYTES, RANGE_BYTES

# Less is copied together: a buffer of its own costs the kernel and us more than that.
_SMALL_BYTES: Final = 16 << 10
# A run, and what else goes with it: a chunk that ends within a run keeps its buffer for the next.
CHUNK_BYTES: Final = RANGE_BYTES + RANGE_BYTES // 64
_SIZE: Final = attrgetter("nbytes")


class Chunk:
    """Buffers that follow each other, sent in one call. Its length is in bytes."""

    __slots__ = ("_n_bytes", "views")

    def __init__(self, views: list[memoryview]) -> None:
        self.views = views
        self._n_bytes: int = sum(map(_SIZE, views))

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.views)


# Of any bytes that follow each other: one buffer, or several that belong together.
Piece: TypeAlias = bytes | memoryview | list[memoryview]


def in_chunks(
    pieces: Iterable[Piece],
    chunk_bytes: int = CHUNK_BYTES,
    first_bytes: int = FIRST_RANGE_BYTES,
) -> Iterator[Chunk]:
    """The same bytes in chunks of at most chunk_bytes, the first one of about first_bytes.

    Hardly any chunk is much smaller than a piece can be; large pieces are not copied. Those of
    several buffers stay together, and have chunk_bytes at most.
    """
    views: list[memoryview] = []
    n_bytes, limit = 0, first_bytes
    # What is kept back for the next chunk keeps a buffer from being used for that.
    enough = chunk_bytes - chunk_bytes // 4
    for piece in pieces:
        for group in _groups(piece, chunk_bytes):
            size = sum(map(_SIZE, group))
            if views and n_bytes + size > chunk_bytes:
                yield Chunk(_joined(views))
                views, n_bytes, limit = [], 0, enough
            views += group
            n_bytes += size
            if n_bytes >= limit:
                yield Chunk(_joined(views))
                views, n_bytes, limit = [], 0, enough
    if n_bytes:
        yield Chunk(_joined(views))


def _groups(piece: Piece, chunk_bytes: int) -> Iterable[list[memoryview]]:
    if isinstance(piece, list):
        return (piece,)
    whole = memoryview(piece)
    if whole.nbytes <= chunk_bytes:
        return ([whole],)
    return ([whole[i : i + chunk_bytes]] for i in range(0, whole.nbytes, chunk_bytes))


def _joined(views: list[memoryview]) -> list[memoryview]:
    """The same bytes, where small neighbours are one buffer."""
    if len(views) == 1:
        return views
    found: list[memoryview] = []
    small: list[memoryview] = []
    for view in views:
        if view.nbytes < _SMALL_BYTES:
            small.append(view)
            continue
        if small:
            found.append(small[0] if len(small) == 1 else memoryview(b"".join(small)))
            small = []
        found.append(view)
    if small:
        found.append(small[0] if len(small) == 1 else memoryview(b"".join(small)))
    return found
