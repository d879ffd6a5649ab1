"""The hashes of the Xet protocol: keyed BLAKE3 of chunks, and Merkle trees over them.

Source: the protocol's public specification (docs/xet.md). A hash has 32 bytes. Its text, which the
tree hashes too, is the hash as four little-endian 64-bit integers in hex.
"""

import re
import struct
from collections.abc import Iterable
from typing import Final

from blake3 import blake3

from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted

HASH_BYTES: Final = 32

_CHUNK_KEY: Final = bytes.fromhex(
    "6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229"
)
_NODE_KEY: Final = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
_RANGE_KEY: Final = bytes.fromhex(
    "7f1857d6ce56ed66127ff913e7a5c3f3a4cd26d5b5db49e64124987f28fb94c3"
)
_FILE_KEY: Final = bytes(HASH_BYTES)

# A node has 3 to 9 children. It ends after the third or a later child if the last 64-bit integer of
# the child's hash is a multiple of 4.
_MIN_CHILDREN: Final = 3
_MAX_CHILDREN: Final = 9
_SPLIT_MASK: Final = 3

_WORDS: Final = struct.Struct("<4Q")
_TEXT: Final = re.compile(r"[0-9a-f]{64}")


def to_text(digest: bytes) -> str:
    """The text of a hash: 64 hex digits."""
    return "%016x%016x%016x%016x" % _WORDS.unpack(digest)  # noqa: UP031  # twice as fast


def from_text(text: str) -> bytes:
    """The hash of 64 lower-case hex digits; InvalidRequest."""
    if not _TEXT.fullmatch(text):
        raise InvalidRequest(f"{quoted(text)} is no Xet hash: 64 lower-case hex digits")
    return _WORDS.pack(*(int(text[i : i + 16], 16) for i in range(0, 64, 16)))


def chunk_hash(data: bytes | bytearray | memoryview) -> bytes:
    return blake3(data, key=_CHUNK_KEY).digest()


def range_hash(chunk_hashes: bytes) -> bytes:
    """The verification hash of a range of chunks, over their concatenated hashes. It shows that the
    sender knows the chunk hashes, not only the hash of the xorb.
    """
    return blake3(chunk_hashes, key=_RANGE_KEY).digest()


class Merkle:
    """The tree over a stream of chunks. Memory: up to 9 nodes for each level."""

    def __init__(self) -> None:
        # For each level: the nodes without a parent yet, and the number of all nodes.
        self._open: list[list[tuple[bytes, int]]] = [[]]
        self._n_nodes: list[int] = [0]

    def update(self, chunks: Iterable[tuple[bytes, int]]) -> None:
        """Add chunks: (hash, bytes)."""
        for digest, size in chunks:
            self._add(0, digest, size)

    def root(self) -> bytes:
        """The hash of a xorb of the added chunks; zeros without chunks."""
        if self._n_nodes[0] == 0:
            return bytes(HASH_BYTES)
        level = 0
        while self._n_nodes[level] > 1:
            if self._open[level]:
                self._close(level)
            level += 1
        return self._open[level][0][0]

    def file_hash(self) -> bytes:
        """The hash of a file of the added chunks."""
        if self._n_nodes[0] == 0:
            return bytes(HASH_BYTES)
        return blake3(self.root(), key=_FILE_KEY).digest()

    def _add(self, level: int, digest: bytes, size: int) -> None:
        if level == len(self._open):
            self._open.append([])
            self._n_nodes.append(0)
        nodes = self._open[level]
        nodes.append((digest, size))
        self._n_nodes[level] += 1
        n = len(nodes)
        # digest[24] is the lowest byte of the last 64-bit integer.
        if n == _MAX_CHILDREN or (n >= _MIN_CHILDREN and not digest[24] & _SPLIT_MASK):
            self._close(level)

    def _close(self, level: int) -> None:
        nodes = self._open[level]
        lines = "".join([f"{to_text(digest)} : {size}\n" for digest, size in nodes])
        parent = blake3(lines.encode(), key=_NODE_KEY).digest()
        size = sum(size for _, size in nodes)
        nodes.clear()
        self._add(level + 1, parent, size)


def xorb_hash(chunks: Iterable[tuple[bytes, int]]) -> bytes:
    """The hash of a xorb. chunks: (hash, bytes) in order."""
    tree = Merkle()
    tree.update(chunks)
    return tree.root()
