"""Walking the blocks of a frame: the two modes that all codecs share, and threads."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Final, TypeVar

import xxhash

from deltahub.codecs._native import LEAST_CHECKED
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import BlockMode, Buffer, Geometry, StoredBlocks

T = TypeVar("T")


def block_checksum(decoded: Buffer, index: int) -> int:
    """XXH3-64 of a block's decoded bytes, seeded with its index so that swapped blocks show."""
    return xxhash.xxh3_64_intdigest(decoded, seed=index)


GUARD_BYTES: Final = 4


def guard(stored: Buffer) -> bytes:
    """What stands before a coded block whose bits do not all show in what it decodes to."""
    return (xxhash.xxh3_64_intdigest(stored) & 0xFFFFFFFF).to_bytes(GUARD_BYTES, "little")


def unguarded(stored: memoryview) -> memoryview:
    """What follows the guard; CorruptFrame where it does not match."""
    if stored[:GUARD_BYTES] != guard(stored[GUARD_BYTES:]):
        raise CorruptFrame("a block has a wrong guard")
    return stored[GUARD_BYTES:]


def plain_block(mode: int, stored: memoryview, base: memoryview | None, out: memoryview) -> bool:
    """Whether `mode` was one of the two that need no codec; then `out` is filled.

    base, out: exactly this block's decoded bytes. stored: this block's stored bytes.
    """
    if mode == BlockMode.RAW:
        out[:] = stored
        return True
    if mode == BlockMode.UNCHANGED and base is not None:
        out[:] = base
        return True
    return False


def map_blocks(work: Callable[[int], T], n_blocks: int, threads: int) -> list[T]:
    """[work(0), ..., work(n_blocks - 1)], on `threads` threads; the first error is raised."""
    if threads <= 1 or n_blocks <= 1:
        return [work(i) for i in range(n_blocks)]
    with ThreadPoolExecutor(min(threads, n_blocks)) as pool:
        return list(pool.map(work, range(n_blocks)))


def each_block(work: Callable[[int], T], n_blocks: int, threads: int) -> Iterator[T]:
    """The same one by one; of what is done no more than two a thread wait to be taken."""
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


def room_of(geometry: Geometry) -> int:
    """For the blocks of a frame and what stands before them."""
    return geometry.size_bytes + geometry.size_bytes // 64 + (4 << 10)


def raw_blocks(geometry: Geometry, source: memoryview) -> StoredBlocks:
    """All blocks as they are."""
    spans = decoded_spans(geometry, 0, geometry.n_blocks)
    return StoredBlocks(
        ((BlockMode.RAW, source[begin:end]) for begin, end in spans), room_of(geometry)
    )


def encoded_blocks(
    encode_block: Callable[[int], tuple[BlockMode, Buffer]],
    geometry: Geometry,
    source: memoryview,
    threads: int,
) -> tuple[StoredBlocks, list[int]]:
    """All blocks of a frame, encoded, and the checksum of each."""

    def encode(index: int) -> tuple[BlockMode, Buffer, int]:
        begin, end = geometry.block_bytes(index)
        return *encode_block(index), block_checksum(source[begin:end], index)

    blocks, checksums = StoredBlocks(room=room_of(geometry)), []
    for mode, stored, checksum in each_block(encode, geometry.n_blocks, threads):
        blocks.append(mode, stored)
        checksums.append(checksum)
    return blocks, checksums


DecodeRun = Callable[[list[int], list[int], list[int], memoryview, memoryview], bool]
"""decode(modes, lengths, sizes, payload, out): all blocks in one call; False if one is damaged."""


def decode_run(
    decode: DecodeRun,
    geometry: Geometry,
    first: int,
    modes: list[int],
    lengths: list[int],
    payload: memoryview,
    out: memoryview,
    threads: int,
) -> bool:
    """Whether `out` was filled by one native call: with one thread, where no block is tiny.

    If not, decode_blocks does the same, or says which block is damaged.
    """
    least = GUARD_BYTES + LEAST_CHECKED
    if threads > 1 or any(
        mode == BlockMode.CODED and length <= least
        for mode, length in zip(modes, lengths, strict=True)
    ):
        return False
    sizes = [end - begin for begin, end in decoded_spans(geometry, first, len(modes))]
    return decode(modes, lengths, sizes, payload, out)


def decode_blocks(
    decode_coded: Callable[[int, memoryview, memoryview, memoryview], None],
    geometry: Geometry,
    first: int,
    modes: list[int],
    lengths: list[int],
    payload: memoryview,
    base: memoryview | None,
    out: memoryview,
    threads: int,
) -> None:
    """Fill `out` with blocks [first, first + len(modes)), on `threads` threads.

    decode_coded(block, stored bytes, base, out) does those that are coded; without a base it gets
    an empty one. The rest is what Codec.decode has.
    """
    spans = list(decoded_spans(geometry, first, len(modes)))
    stored = stored_spans(lengths)

    def decode_block(i: int) -> None:
        decoded, source = slice(*spans[i]), payload[slice(*stored[i])]
        near = None if base is None else base[decoded]
        if not plain_block(modes[i], source, near, out[decoded]):
            decode_coded(first + i, source, memoryview(b"") if near is None else near, out[decoded])

    map_blocks(decode_block, len(modes), threads)


def decoded_spans(geometry: Geometry, first: int, n_blocks: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of blocks first.. in a buffer that begins with block `first`."""
    origin = geometry.block_bytes(first)[0]
    for index in range(first, first + n_blocks):
        begin, end = geometry.block_bytes(index)
        yield begin - origin, end - origin


def stored_spans(lengths: list[int]) -> list[tuple[int, int]]:
    """(begin, end) of each block in a payload of blocks back to back."""
    ends = list(accumulate(lengths))
    return [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
