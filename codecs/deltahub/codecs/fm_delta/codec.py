"""Codec 2, fm_delta: a tensor as integer differences of its words from an aligned base.

Format: codecs/spec/fm_delta.md. The native kernels do the work; this file handles blocks, modes
and errors. `reference.fm_delta` is the codec in readable Python. A frame has version 2 if its
words share trailing zero bits, else version 1. No frame has version 0.
"""

from typing import ClassVar, Final

import numpy as np

from deltahub.codecs._native import BlockTable, FmDeltaDecoder, FmDeltaEncoder, common_stride
from deltahub.codecs.blocks import (
    BlockFault,
    block_checksums,
    decode_plain,
    decoded_spans,
    encode_all_blocks,
    raw_blocks,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, WrongBase
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank
from deltahub.codecs.fm_delta.low_rank.search import find_product
from deltahub.codecs.protocol import BlockMode, Effort, EncodedBody, Geometry, StoredBlocks
from deltahub.codecs.words import WORD_KINDS

BLOCK_ELEMENTS: Final = 1 << 17
PLAIN_VERSION: Final = 1  # of frames whose words share no trailing zero bits
# At max both searches run: for a few tensors the default search finds more.
_SEARCHES: Final = {
    Effort.DEFAULT: (Effort.DEFAULT,),
    Effort.MAX: (Effort.MAX, Effort.DEFAULT),
}


class FmDelta:
    """The codec of tensors with a base."""

    codec_id: ClassVar[str] = "fm_delta"
    number: ClassVar[int] = 2
    version: ClassVar[int] = 2
    n_inputs: ClassVar[int] = 1

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
        if base is None:
            raise WrongBase("fm_delta codes a tensor against a base, and none was given")
        encoded = [
            self._encoded(encoder, geometry, source, base, effort, threads, front)
            for encoder in plans(geometry, source, base, effort)
        ]
        return min(encoded, key=lambda each: len(each.prelude) + each.blocks.size_bytes)

    def _encoded(
        self,
        encoder: FmDeltaEncoder,
        geometry: Geometry,
        source: memoryview,
        base: memoryview,
        effort: Effort,
        threads: int,
        front: int,
    ) -> EncodedBody:
        if encoder.estimated_bytes >= geometry.size_bytes:
            checksums = block_checksums(geometry, source, threads)
            raw = raw_blocks(geometry, source, front)
            return EncodedBody(b"", raw, checksums, effort, PLAIN_VERSION)

        def encode(room: memoryview) -> tuple[list[int], list[int], list[int]]:
            layout = geometry.rows_per_block, geometry.parts_per_row
            return encoder.encode_all(*layout, source, base, room, threads)

        prelude = encoder.prelude
        blocks, checksums = encode_all_blocks(encode, geometry, front + len(prelude))
        saved = geometry.size_bytes - blocks.size_bytes
        if BlockMode.UNCHANGED in blocks.modes:  # these need no tables, so tables save nothing
            sizes = geometry.block_sizes(0, geometry.n_blocks)
            saved -= sum(
                size
                for size, mode in zip(sizes, blocks.modes, strict=True)
                if mode == BlockMode.UNCHANGED
            )
        if saved > len(prelude):
            return EncodedBody(prelude, blocks, checksums, effort, encoder.version)
        # The tables cost more than they save, as for a tensor of a few elements.
        modes = blocks.modes
        del blocks
        plain = StoredBlocks(room=geometry.size_bytes, front=front)
        for mode, (begin, end) in zip(
            modes, decoded_spans(geometry, 0, geometry.n_blocks), strict=True
        ):
            if mode == BlockMode.UNCHANGED:
                plain.append(mode, b"")
            else:
                plain.append(BlockMode.RAW, source[begin:end])
        return EncodedBody(b"", plain, checksums, effort, PLAIN_VERSION)

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
        if base is None:
            raise WrongBase("an fm_delta frame decodes against its base, and none was given")
        if not prelude and version == PLAIN_VERSION:  # no block is coded
            decode_plain(blocks, first, end, payload, base, out, threads)
            return
        kind = WORD_KINDS[geometry.dtype]
        try:
            n_intact, fault = FmDeltaDecoder.decode_once(
                kind, prelude, version, blocks, first, end, payload, base, out, threads
            )
        except ValueError as exc:
            raise CorruptFrame(f"fm_delta prelude: {exc}") from exc
        if fault:
            raise BlockFault(fault).error(first + n_intact, has_base=True)


def may_have_stride(dtype: DType, source: memoryview) -> bool:
    """Whether these words share trailing zero bits: their frame then may have version 2."""
    return common_stride(WORD_KINDS[dtype], source, source) > 0


def plan(
    geometry: Geometry, source: memoryview, base: memoryview, effort: Effort
) -> FmDeltaEncoder:
    """An encoder with the model of a frame. Above effort fast it may have a low-rank product."""
    return plans(geometry, source, base, effort)[0]


def plans(
    geometry: Geometry, source: memoryview, base: memoryview, effort: Effort
) -> list[FmDeltaEncoder]:
    """The encoder of `plan`. At max a second one has the classes of default, because the larger
    number of classes at max may cost more than it saves.
    """
    kind, dtype = WORD_KINDS[geometry.dtype], geometry.dtype
    shape = geometry.rows, geometry.columns

    def encoder_of(
        found: LowRank | None, *, is_strided: bool, effort: Effort = effort
    ) -> FmDeltaEncoder:
        left = right = b""
        floor, is_rounded = 0, False
        if found is not None:
            left, right = found.left.tobytes(), found.right.tobytes()
            floor, is_rounded = found.floor, found.is_rounded
        return FmDeltaEncoder(
            kind, source, base, *shape, effort, left, right, floor, is_rounded, is_strided
        )

    if effort == Effort.FAST or dtype not in FLOAT_WORDS:
        return [encoder_of(None, is_strided=True)]
    unsigned = f"<u{dtype.itemsize}"
    words = np.frombuffer(source, unsigned), np.frombuffer(base, unsigned)
    found = [
        product
        for search in _SEARCHES[effort]
        if (product := find_product(dtype, *words, *shape, search)) is not None
    ]
    # No product is a candidate too, because the search minimizes sums of squares. A few large
    # differences among unchanged words can mislead it.
    candidates: list[tuple[LowRank | None, bool]] = [(None, True)]
    candidates += [(product.low_rank, True) for product in found]
    if common_stride(kind, source, base) > 0:
        # The search used the trailing zero bits. If the model leaves them out, a product may cost
        # more than it saves; so both models are candidates.
        candidates += [(product.low_rank, False) for product in found if not product.is_widened]
    return [
        min(
            (
                encoder_of(fit, is_strided=is_strided, effort=model_effort)
                for fit, is_strided in candidates
            ),
            key=lambda each: each.estimated_bytes,
        )
        for model_effort in ((effort, Effort.DEFAULT) if effort == Effort.MAX else (effort,))
    ]
