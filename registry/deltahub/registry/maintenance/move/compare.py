"""Reads objects of stores, and compares their bytes with a digest or with each other."""

from collections.abc import Iterator
from typing import Final

from blake3 import blake3

from deltahub.registry.maintenance.move.expected import Digest, Expected
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, Store

PIECE_BYTES: Final = 4 << 20


class WrongBytes(Exception):
    """The bytes of an object are not those that its row names."""


def size_in(store: Store, key: str) -> int | None:
    """None if the store has no such object."""
    try:
        return store.size(key)
    except ObjectNotFound:
        return None


def digest_in(store: Store, key: str, size: int, digest: Digest) -> bytes:
    """ObjectNotFound, ShortObject."""
    for piece in _pieces(store, key, size):
        digest.update(piece)
    return digest.digest()


def is_right(store: Store, key: str, expected: Expected) -> bool:
    """Whether the store has the bytes that the row names. False if the row names none."""
    if expected.digest is None or size_in(store, key) != expected.size or expected.size is None:
        return False
    try:
        found = digest_in(store, key, expected.size, expected.new_digest())
    except (ObjectNotFound, ShortObject):
        return False
    return found == expected.digest


def are_equal(one: Store, other: Store, key: str) -> bool:
    """Whether both have the object, with the same bytes."""
    size = size_in(one, key)
    if size is None or size != size_in(other, key):
        return False
    try:
        return digest_in(one, key, size, blake3()) == digest_in(other, key, size, blake3())
    except (ObjectNotFound, ShortObject):
        return False


def checked(
    store: Store, key: str, size: int, digest: Digest, right: bytes | None
) -> Iterator[bytearray]:
    """The bytes of an object. WrongBytes at their end ends a put, which then leaves nothing.

    right: the digest that they must have; None for any.
    """
    for piece in _pieces(store, key, size):
        digest.update(piece)
        yield piece
    if right not in (None, digest.digest()):
        raise WrongBytes("its bytes are not those that its row names")


def _pieces(store: Store, key: str, size: int) -> Iterator[bytearray]:
    for start in range(0, size, PIECE_BYTES):
        piece = bytearray(min(PIECE_BYTES, size - start))
        store.get_into(key, start, memoryview(piece))
        yield piece
