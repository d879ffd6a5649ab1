"""What one write hands to a socket: bytes that stay where they were decoded."""

from collections.abc import Iterable, Iterator
from typing import Final

from deltahub.registry.tensor_reader import FIRST_RUN_BYTES, RUN_BYTES

# Less is copied together: a buffer of its own costs the kernel and us more than that.
_SMALL_BYTES: Final = 16 << 10


class Chunk:
    """Buffers that follow each other, sent in one call. Its length is in bytes."""

    __slots__ = ("_n_bytes", "views")

    def __init__(self, views: list[memoryview]) -> None:
        self.views = views
        self._n_bytes = sum(view.nbytes for view in views)

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.views)


def in_chunks(
    pieces: Iterable[bytes | memoryview],
    chunk_bytes: int = RUN_BYTES,
    first_bytes: int = FIRST_RUN_BYTES,
) -> Iterator[Chunk]:
    """The same bytes in chunks of at most chunk_bytes, the first one of about first_bytes.

    Hardly any chunk is much smaller than a piece can be; large pieces are not copied.
    """
    views: list[memoryview] = []
    n_bytes, limit = 0, first_bytes
    for piece in pieces:
        whole = memoryview(piece)
        for begin in range(0, whole.nbytes, chunk_bytes):
            part = whole[begin : begin + chunk_bytes]
            if views and n_bytes + part.nbytes > chunk_bytes:
                yield Chunk(_joined(views))
                views, n_bytes, limit = [], 0, chunk_bytes
            views.append(part)
            n_bytes += part.nbytes
            if n_bytes >= limit:
                yield Chunk(_joined(views))
                views, n_bytes, limit = [], 0, chunk_bytes
    if views:
        yield Chunk(_joined(views))


def _joined(views: list[memoryview]) -> list[memoryview]:
    """The same bytes, where small neighbours are one buffer."""
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
