"""Checksums of an upload by block, so that any range of it can be verified when it is read.

The XXH3-64 of each MiB, little-endian, seeded by the block's number, so that a block that was
written to another place does not check either. The last block may be shorter.
"""

from typing import Final

import xxhash

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


def block_checks(block: Buffer, index: int, checksum: bytes) -> bool:
    """Whether the bytes of block number `index` have this checksum."""
    return _stored(xxhash.xxh3_64_intdigest(block, seed=index)) == checksum


def _stored(digest: int) -> bytes:
    return digest.to_bytes(CHECKSUM_BYTES, "little")
