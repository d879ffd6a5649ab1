"""Groups decoded buffers into chunks, each for one write to a socket, mostly without copying."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from deltahub.registry.packs.tensor_reader import FIRST_RANGE_BYTES, RANGE_BYTES

# Smaller neighbours are copied into one buffer: a separate buffer costs more than the copy.
_SMALL_BYTES: Final = 16 << 10
# One decoded run and a little more, because a chunk that ends inside a run would keep the buffer of
# that run in use until the next chunk is sent.
CHUNK_BYTES: Final = RANGE_BYTES + RANGE_BYTES // 64
_SIZE: Final = attrgetter("nbytes")


class Chunk:
    """Consecutive buffers, sent in one call. len() is in bytes."""

    __slots__ = ("_n_bytes", "views")

    def __init__(self, views: list[memoryview]) -> None:
        self.views = views
        self._n_bytes: int = sum(map(_SIZE, views))

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.views)


# Consecutive bytes: one buffer, or several that must stay in one chunk.
Piece: TypeAlias = bytes | memoryview | list[memoryview]


def in_chunks(
    pieces: Iterable[Piece],
    chunk_bytes: int = CHUNK_BYTES,
    first_bytes: int = FIRST_RANGE_BYTES,
) -> Iterator[Chunk]:
    """Yield the same bytes in chunks of at most chunk_bytes, the first one of about first_bytes.

    Small pieces are collected, so that few chunks are small; large pieces are not copied. The
    buffers of a list stay in one chunk; a list has at most chunk_bytes bytes.
    """
    views: list[memoryview] = []
    n_bytes, limit = 0, first_bytes
    # A chunk is sent once it has 3/4 of chunk_bytes: bytes held back for the next chunk keep a
    # decoder's buffer from being reused.
    full_bytes = chunk_bytes - chunk_bytes // 4
    for piece in pieces:
        for group in _groups(piece, chunk_bytes):
            size = sum(map(_SIZE, group))
            if views and n_bytes + size > chunk_bytes:
                yield Chunk(_merge_small(views))
                views, n_bytes, limit = [], 0, full_bytes
            views += group
            n_bytes += size
            if n_bytes >= limit:
                yield Chunk(_merge_small(views))
                views, n_bytes, limit = [], 0, full_bytes
    if n_bytes:
        yield Chunk(_merge_small(views))


def _groups(piece: Piece, chunk_bytes: int) -> Iterable[list[memoryview]]:
    if isinstance(piece, list):
        return (piece,)
    whole = memoryview(piece)
    if whole.nbytes <= chunk_bytes:
        return ([whole],)
    return ([whole[i : i + chunk_bytes]] for i in range(0, whole.nbytes, chunk_bytes))


def _merge_small(views: list[memoryview]) -> list[memoryview]:
    """The same bytes, with small neighbours copied into one buffer."""
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
