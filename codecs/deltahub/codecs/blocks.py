"""Encodes and decodes the blocks of a frame, with their modes, checksums and threads."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from itertools import accumulate
from typing import Final, TypeVar

import xxhash

from deltahub.codecs._native import (
    FAULT_GUARD,
    FAULT_OTHER_BYTES,
    FAULT_STREAM,
    BlockTable,
    decode_uncoded_range,
)
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import BlockMode, Buffer, EncodeAll, Geometry, StoredBlocks

T = TypeVar("T")


def block_checksum(decoded: Buffer, index: int) -> int:
    """XXH3-64 of a block's decoded bytes, seeded with its index so that swapped blocks show."""
    return xxhash.xxh3_64_intdigest(decoded, seed=index)


GUARD_BYTES: Final = 4


def guard(stored: Buffer) -> bytes:
    """The guard of a coded block. It detects damage that does not change the decoded bytes."""
    return (xxhash.xxh3_64_intdigest(stored) & 0xFFFFFFFF).to_bytes(GUARD_BYTES, "little")


def unguarded(stored: memoryview) -> memoryview:
    """The bytes after the guard; CorruptFrame if the guard does not match."""
    if stored[:GUARD_BYTES] != guard(stored[GUARD_BYTES:]):
        raise CorruptFrame("a block has a wrong guard")
    return stored[GUARD_BYTES:]


def map_blocks(work: Callable[[int], T], n_blocks: int, threads: int) -> list[T]:
    """[work(0), ..., work(n_blocks - 1)], on `threads` threads; the first error is raised."""
    if threads <= 1 or n_blocks <= 1:
        return [work(i) for i in range(n_blocks)]
    with ThreadPoolExecutor(min(threads, n_blocks)) as pool:
        return list(pool.map(work, range(n_blocks)))


def iterate_blocks(work: Callable[[int], T], n_blocks: int, threads: int) -> Iterator[T]:
    """Yields work(0), work(1), ... in order; keeps at most two finished results per thread."""
    if threads <= 1 or n_blocks <= 1:
        yield from map(work, range(n_blocks))
        return
    with ThreadPoolExecutor(min(threads, n_blocks)) as pool:
        waiting: deque[Future[T]] = deque()
        for index in range(n_blocks):
            waiting.append(pool.submit(work, index))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def raw_blocks(geometry: Geometry, source: memoryview, front: int) -> StoredBlocks:
    """All blocks of a frame, stored raw. front: see StoredBlocks."""
    spans = decoded_spans(geometry, 0, geometry.n_blocks)
    blocks = ((BlockMode.RAW, source[begin:end]) for begin, end in spans)
    return StoredBlocks(blocks, geometry.size_bytes, front)


def block_checksums(geometry: Geometry, source: memoryview, threads: int) -> list[int]:
    """The checksums of all blocks of a frame."""

    def checksum(index: int) -> int:
        begin, end = geometry.block_bytes(index)
        return block_checksum(source[begin:end], index)

    return map_blocks(checksum, geometry.n_blocks, threads)


def encode_each_block(
    encode_block: Callable[[memoryview], tuple[BlockMode, Buffer]],
    geometry: Geometry,
    source: memoryview,
    threads: int,
    front: int,
) -> tuple[StoredBlocks, list[int]]:
    """All blocks of a frame, encoded one by one, and their checksums. front: see StoredBlocks."""

    def encode(index: int) -> tuple[BlockMode, Buffer, int]:
        begin, end = geometry.block_bytes(index)
        words = source[begin:end]
        return *encode_block(words), block_checksum(words, index)

    blocks, checksums = StoredBlocks(room=geometry.size_bytes, front=front), []
    for mode, stored, checksum in iterate_blocks(encode, geometry.n_blocks, threads):
        blocks.append(mode, stored)
        checksums.append(checksum)
    return blocks, checksums


def encode_all_blocks(
    encode: EncodeAll, geometry: Geometry, front: int
) -> tuple[StoredBlocks, list[int]]:
    """All blocks of a frame, encoded by one native call, and their checksums."""
    blocks = StoredBlocks(room=geometry.size_bytes, front=front)
    return blocks, blocks.fill(encode)


class BlockFault(IntEnum):
    """The fault of a block, as the native decoders return it."""

    GUARD = FAULT_GUARD
    STREAM = FAULT_STREAM
    OTHER_BYTES = FAULT_OTHER_BYTES

    def error(self, index: int, *, has_base: bool) -> CorruptFrame:
        """The error for this fault. index: of the block in its frame."""
        if self is BlockFault.OTHER_BYTES:
            hint = " or this is not its base" if has_base else ""
            return CorruptFrame(f"block {index} decodes to other bytes: damaged{hint}")
        what = (
            "has a wrong guard" if self is BlockFault.GUARD else "is not one that an encoder writes"
        )
        return CorruptFrame(f"block {index} {what}")


def decode_plain(
    blocks: BlockTable,
    first: int,
    end: int,
    payload: memoryview,
    base: memoryview | None,
    out: memoryview,
    threads: int,
) -> None:
    """Fill `out` with blocks [first, end) of a frame that has no coded ones, as Codec.decode."""
    base_bytes = b"" if base is None else base
    n_intact, fault = decode_uncoded_range(blocks, first, end, payload, base_bytes, out, threads)
    if fault == BlockFault.OTHER_BYTES:
        raise BlockFault.OTHER_BYTES.error(first + n_intact, has_base=base is not None)
    if fault:
        raise CorruptFrame(f"block {first + n_intact}: a coded block, but the frame has no tables")


def decode_blocks(
    decode_coded: Callable[[memoryview, memoryview], None],
    geometry: Geometry,
    blocks: BlockTable,
    first: int,
    end: int,
    payload: memoryview,
    out: memoryview,
    threads: int,
) -> None:
    """Fill `out` with blocks [first, end) of a frame without a base, as Codec.decode.

    decode_coded(stored bytes, out) decodes a coded block, or raises CorruptFrame.
    """
    rows = blocks.rows(first, end)
    decoded = list(decoded_spans(geometry, first, len(rows)))
    stored = stored_spans([length for _, length, _ in rows])

    def decode_block(i: int) -> None:
        mode, _, checksum = rows[i]
        target, source = out[slice(*decoded[i])], payload[slice(*stored[i])]
        if mode == BlockMode.RAW:
            target[:] = source
        else:
            try:
                decode_coded(source, target)
            except CorruptFrame as exc:
                raise CorruptFrame(f"block {first + i}: {exc}") from exc
        if block_checksum(target, first + i) != checksum:
            raise BlockFault.OTHER_BYTES.error(first + i, has_base=False)

    map_blocks(decode_block, len(rows), threads)


def decoded_spans(geometry: Geometry, first: int, n_blocks: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of blocks from `first` on, in a buffer that begins with block `first`."""
    origin = geometry.block_bytes(first)[0]
    for index in range(first, first + n_blocks):
        begin, end = geometry.block_bytes(index)
        yield begin - origin, end - origin


def stored_spans(lengths: list[int]) -> list[tuple[int, int]]:
    """(begin, end) of each block in a payload of blocks back to back."""
    ends = list(accumulate(lengths))
    return [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
