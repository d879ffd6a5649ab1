"""Hashes an object as it lies in the store."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, Store
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.storage.refusals import translated_store_errors

_READ_BYTES: Final = 4 << 20
# Requests at once: a bucket takes some 20 ms to begin an answer, and sends 100 MB/s of one.
_PARALLEL: Final = 4


def hashes_in(store: Store, key: str, size: int) -> Hashes | None:
    """The hashes of an object; None if it is gone or has another size. Memory: 16 MiB.

    Errors of reading are registry errors.
    """
    hashes = Hashes(size)
    try:
        if store.size(key) != size:
            return None
        with translated_store_errors():
            for piece in _pieces(store, key, size):
                cancellation.check()
                hashes.update(piece)
    except (ObjectNotFound, ShortObject):
        return None
    return hashes


def _pieces(store: Store, key: str, size: int) -> Iterator[memoryview]:
    def read(start: int) -> memoryview:
        piece = memoryview(bytearray(min(_READ_BYTES, size - start)))
        store.get_into(key, start, piece)
        return piece

    if size <= _READ_BYTES:
        if size:
            yield read(0)
        return
    coming: deque[Future[memoryview]] = deque()
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="hash") as pool:
        try:
            for start in range(0, size, _READ_BYTES):
                coming.append(pool.submit(read, start))
                if len(coming) == _PARALLEL:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()
