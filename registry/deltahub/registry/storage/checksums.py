"""The hashes of an upload, and its checksums by block, which verify any range when it is read.

A checksum is the XXH3-64 of a MiB, little-endian, seeded by the block's number, so that a block
that was written to another place does not check either. The last block may be shorter.
"""

import hashlib
from typing import Final

import xxhash

from deltahub.registry.names import LFS_BYTES
from deltahub.registry.storage.base import Buffer

BLOCK_BYTES: Final = 1 << 20
CHECKSUM_BYTES: Final = 8


class BlockChecksums:
    """Computes the checksums of bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._whole = bytearray()
        self._block = xxhash.xxh3_64(seed=0)
        self._n_block = 0

    def update(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            piece = view[: BLOCK_BYTES - self._n_block]
            self._block.update(piece)
            self._n_block += piece.nbytes
            if self._n_block == BLOCK_BYTES:
                self._whole += _stored(self._block.intdigest())
                self._block = xxhash.xxh3_64(seed=len(self._whole) // CHECKSUM_BYTES)
                self._n_block = 0
            view = view[piece.nbytes :]

    def table(self) -> bytes:
        """The checksums of all blocks so far; the last block may be unfinished."""
        last = _stored(self._block.intdigest()) if self._n_block else b""
        return bytes(self._whole) + last

    def copy(self) -> "BlockChecksums":
        twin = BlockChecksums()
        twin._whole = self._whole.copy()
        twin._block = self._block.copy()
        twin._n_block = self._n_block
        return twin


class Hashes:
    """SHA-256 and block checksums of the bytes so far, and SHA-1 of a git blob of `total` bytes.

    For a file of LFS_BYTES or more there is no SHA-1, because git stores only a pointer to it.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.n_bytes = 0
        self._sha256 = hashlib.sha256()
        self._blocks = BlockChecksums()
        # SHA-1 is not for security here: it is the name of a git blob.
        blob = None if total >= LFS_BYTES else hashlib.sha1(usedforsecurity=False)
        if blob is not None:
            blob.update(b"blob %d\0" % total)
        self._git = blob

    def update(self, data: Buffer) -> None:
        self._sha256.update(data)
        self._blocks.update(data)
        if self._git is not None:
            self._git.update(data)
        self.n_bytes += memoryview(data).nbytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def git_blob_id(self) -> str | None:
        return None if self._git is None else self._git.hexdigest()

    @property
    def checksums(self) -> bytes:
        """The table of checksums by block (checksums.py)."""
        return self._blocks.table()

    def copy(self) -> "Hashes":
        twin = Hashes.__new__(Hashes)
        twin.total, twin.n_bytes = self.total, self.n_bytes
        twin._sha256 = self._sha256.copy()
        twin._blocks = self._blocks.copy()
        twin._git = None if self._git is None else self._git.copy()
        return twin


def block_checks(block: Buffer, index: int, checksum: bytes) -> bool:
    """Whether the bytes of block number `index` have this checksum."""
    return _stored(xxhash.xxh3_64_intdigest(block, seed=index)) == checksum


def _stored(digest: int) -> bytes:
    return digest.to_bytes(CHECKSUM_BYTES, "little")
