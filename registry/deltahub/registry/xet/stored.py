"""Xorbs as they lie in the store, compared with what came."""

from deltahub.registry.registry import Registry
from deltahub.registry.store.base import StoreError
from deltahub.registry.store.keys import xorb_key
from deltahub.registry.xet.hashes import Merkle, chunk_hash
from deltahub.registry.xet.xorb import XorbIndex


def root_in_store(reg: Registry, xorb_id: str, index: XorbIndex) -> bytes:
    """The hash of a xorb of these chunks as its object has them now; StoreError."""
    tree, place = Merkle(), 0
    for _, size in index.entries():
        chunk = memoryview(bytearray(size))
        reg.store.get_into(xorb_key(xorb_id), place, chunk)
        tree.update([(chunk_hash(chunk), size)])
        place += size
    return tree.root()


def is_intact(reg: Registry, xorb_id: str, index: XorbIndex, digest: bytes) -> bool:
    """Whether the xorb can be read, and still has this hash."""
    try:
        return root_in_store(reg, xorb_id, index) == digest
    except StoreError:
        return False
