"""Stores with a cache on the disk, and packs of random bytes."""

import random
from pathlib import Path

from deltahub.registry.storage.base import Store
from deltahub.registry.storage.cache.object_cache import ObjectCache
from deltahub.registry.storage.cache.store import CachedStore
from deltahub.registry.storage.disk import Disk

GIB = 1 << 30


def cached(folder: Path, inner: Store, limit: int = GIB, disk: Disk | None = None) -> CachedStore:
    return CachedStore(inner, ObjectCache(folder, limit, disk or Disk(), keep_free=0))


def read(store: Store, key: str, start: int, end: int) -> bytes:
    """Bytes of an object, from the copy if there is one."""
    out = bytearray(end - start)
    store.get_cached_into(key, start, memoryview(out))
    return bytes(out)


def pack(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)
