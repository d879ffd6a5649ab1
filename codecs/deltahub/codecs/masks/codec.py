"""Codec 4, masks: a task's tensor from two inputs, the base's and the unified model's.

The format page is codecs/spec/masks.md. An element is the base's, or where its mask is 1 the base
plus a scale times the unified model's difference from it: EMR-Merging, arXiv 2405.17461, step 6 of
Algorithm 1.
"""

import math
import struct
from typing import ClassVar, Final

import zstandard

from deltahub.codecs._native import BlockTable, decode_mask, pack_mask
from deltahub.codecs.blocks import (
    GUARD_BYTES,
    BlockFault,
    block_checksum,
    decoded_spans,
    guard,
    iterate_blocks,
    map_blocks,
    stored_spans,
    unguarded,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, InvalidInput
from deltahub.codecs.protocol import BlockMode, Buffer, Effort, EncodedBody, Geometry, StoredBlocks
from deltahub.codecs.words import WORD_KINDS
from deltahub.codecs.zstd import zstd_header

DTYPES: Final = frozenset(dtype for dtype in DType if dtype.is_float)
BLOCK_ELEMENTS: Final = 1 << 18
# How a coded block's bits are stored, its first byte after the guard.
ALL_ONES, PACKED, COMPRESSED = 1, 2, 3
LEVEL: Final = 3
SCALE: Final = struct.Struct("<d")


class Masks:
    """scale: of the frames that this object encodes; decoding reads it from the prelude."""

    codec_id: ClassVar[str] = "masks"
    number: ClassVar[int] = 4
    version: ClassVar[int] = 1
    n_inputs: ClassVar[int] = 2

    def __init__(self, scale: float = 1.0) -> None:
        if not math.isfinite(scale) or scale < 0:
            raise InvalidInput(f"a mask's scale is a number from 0 on, not {scale}")
        self._scale = scale + 0.0  # not -0.0, which has other bytes

    def block_bytes(self, dtype: DType) -> int:
        return BLOCK_ELEMENTS * dtype.itemsize

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
        front: int = 0,
    ) -> EncodedBody:
        """source: the words that `merge_task` makes of the two inputs, else InvalidInput."""
        assert base is not None, "the frame layer passes both inputs"
        if geometry.dtype not in DTYPES:
            raise InvalidInput(f"masks of {geometry.dtype.name} are not coded")
        kind, size = WORD_KINDS[geometry.dtype], geometry.size_bytes

        def encode(index: int) -> tuple[BlockMode, Buffer, int]:
            begin, end = geometry.block_bytes(index)
            words = source[begin:end]
            inputs = base[begin:end], base[size + begin : size + end]
            mode, stored = _encode_block(kind, words, inputs, self._scale)
            return mode, stored, block_checksum(words, index)

        blocks, checksums = StoredBlocks(room=size, front=front + SCALE.size), []
        for mode, stored, checksum in iterate_blocks(encode, geometry.n_blocks, threads):
            blocks.append(mode, stored)
            checksums.append(checksum)
        return EncodedBody(SCALE.pack(self._scale), blocks, checksums)

    def decode(
        self,
        geometry: Geometry,
        version: int,
        prelude: bytes,
        blocks: BlockTable,
        first: int,
        end: int,
        payload: memoryview,
        base: memoryview | None,
        out: memoryview,
        threads: int,
    ) -> None:
        assert base is not None, "the frame layer passes both inputs"
        scale = _scale_of(geometry.dtype, prelude)
        kind, size = WORD_KINDS[geometry.dtype], len(out)
        rows = blocks.rows(first, end)
        decoded = list(decoded_spans(geometry, first, len(rows)))
        stored = stored_spans([length for _, length, _ in rows])

        def decode_block(i: int) -> None:
            mode, _, checksum = rows[i]
            low, high = decoded[i]
            target, data = out[low:high], payload[slice(*stored[i])]
            if mode == BlockMode.UNCHANGED:
                target[:] = base[low:high]
            elif mode == BlockMode.RAW:
                target[:] = data
            else:
                inputs = base[low:high], base[size + low : size + high]
                try:
                    _decode_block(kind, data, inputs, scale, target)
                except CorruptFrame as exc:
                    raise CorruptFrame(f"block {first + i}: {exc}") from exc
            if block_checksum(target, first + i) != checksum:
                raise BlockFault.OTHER_BYTES.error(first + i, has_base=True)

        map_blocks(decode_block, len(rows), threads)


def _scale_of(dtype: DType, prelude: bytes) -> float:
    if dtype not in DTYPES:
        raise CorruptFrame(f"masks of {dtype.name} are not coded")
    if len(prelude) != SCALE.size:
        raise CorruptFrame(f"a masks prelude has {SCALE.size} bytes, not {len(prelude)}")
    (scale,) = SCALE.unpack(prelude)
    if not math.isfinite(scale) or math.copysign(1, scale) < 0:
        raise CorruptFrame(f"a mask's scale is a number from 0 on, not {scale}")
    return float(scale)


def _encode_block(
    kind: int, words: memoryview, inputs: tuple[memoryview, memoryview], scale: float
) -> tuple[BlockMode, Buffer]:
    base, unified = inputs
    if words == base:
        return BlockMode.UNCHANGED, b""
    try:
        bits, n_bits = pack_mask(kind, base, unified, words, scale)
    except ValueError as exc:
        raise InvalidInput(str(exc)) from exc
    body = _shortest(bits, n_bits)
    if GUARD_BYTES + len(body) >= len(words):
        return BlockMode.RAW, words
    return BlockMode.CODED, guard(body) + body


def _shortest(bits: bytes, n_bits: int) -> bytes:
    whole, rest = divmod(n_bits, 8)
    if bits == b"\xff" * whole + (bytes([(1 << rest) - 1]) if rest else b""):
        return bytes([ALL_ONES])
    packed = bytes([PACKED]) + bits
    compressed = bytes([COMPRESSED]) + zstandard.ZstdCompressor(level=LEVEL).compress(bits)
    return compressed if len(compressed) < len(packed) else packed


def _decode_block(
    kind: int,
    stored: memoryview,
    inputs: tuple[memoryview, memoryview],
    scale: float,
    out: memoryview,
) -> None:
    body = unguarded(stored)
    if not body:
        raise CorruptFrame("a mask without a form")
    form, data = body[0], body[1:]
    bits: Buffer | None
    if form == ALL_ONES:
        if data:
            raise CorruptFrame("bytes after a mask of ones")
        bits = None
    elif form == PACKED:
        bits = data
    elif form == COMPRESSED:
        bits = _decompress(data, len(out))
    else:
        raise CorruptFrame(f"{form} is no form of a mask")
    try:
        decode_mask(kind, *inputs, bits, scale, out)
    except ValueError as exc:
        raise CorruptFrame(f"a mask is {exc}") from exc


def _decompress(data: memoryview, most: int) -> bytes:
    """The bits. most: no mask has more bytes, so no more memory is taken."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most or bytes(data[: len(zstd_header(size))]) != zstd_header(size):
            raise CorruptFrame("a compressed mask has a damaged header")
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 23)
        return decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise CorruptFrame(f"a compressed mask does not decode: {exc}") from exc
