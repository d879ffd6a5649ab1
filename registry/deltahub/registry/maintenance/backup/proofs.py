"""What proves that bytes are those of an object: the hash that the database has of them."""

import hashlib
from collections.abc import Iterator
from typing import Protocol

from blake3 import blake3

from deltahub.registry.storage.base import Buffer, Store
from deltahub.registry.xet.xorb import RootDigest, XorbIndex

READ_BYTES = 4 << 20


class Proof(Protocol):
    """Takes all bytes of an object in order. digest: their BLAKE3."""

    def update(self, data: Buffer) -> None: ...

    def is_right(self) -> bool:
        """Whether the bytes were those that the database knows."""
        ...

    @property
    def digest(self) -> str:
        """The BLAKE3 of the bytes in hex."""
        ...


class Blake3Proof:
    """Proves a pack by its row, or any object by a manifest."""

    def __init__(self, expected: str | None) -> None:
        """expected: in hex; None if any bytes are right."""
        self._expected = expected
        self._hash = blake3()

    def update(self, data: Buffer) -> None:
        self._hash.update(data)

    def is_right(self) -> bool:
        return self._expected is None or self._hash.hexdigest() == self._expected

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Sha256Proof(Blake3Proof):
    """Proves an upload by the SHA-256 that its client named."""

    def __init__(self, sha256: str) -> None:
        super().__init__(None)
        self._sha256 = hashlib.sha256()
        self._wanted = sha256

    def update(self, data: Buffer) -> None:
        super().update(data)
        self._sha256.update(data)

    def is_right(self) -> bool:
        return self._sha256.hexdigest() == self._wanted


class XorbProof(Blake3Proof):
    """Proves a xorb by the root of the tree over its chunks."""

    def __init__(self, root: bytes, index: XorbIndex) -> None:
        super().__init__(None)
        self._root = root
        self._found = RootDigest(index)

    def update(self, data: Buffer) -> None:
        super().update(data)
        self._found.update(data)

    def is_right(self) -> bool:
        return self._found.digest() == self._root


def pieces(store: Store, key: str, size: int) -> Iterator[memoryview]:
    """The bytes of an object in pieces of 4 MiB, each of which overwrites the one before."""
    buffer = memoryview(bytearray(min(size, READ_BYTES)))
    for start in range(0, size, READ_BYTES):
        piece = buffer[: min(READ_BYTES, size - start)]
        store.get_into(key, start, piece)
        yield piece
