"""fm_delta: a tensor as the integer difference of its words from an aligned base.

Format: codecs/spec/fm_delta.md. The work is done by the native kernels; this file knows blocks,
modes and errors. `fm_delta_reference` says the same in readable Python.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from deltahub.codecs._native import FmDeltaDecoder, FmDeltaEncoder
from deltahub.codecs.blocks import (
    block_checksum,
    decoded_spans,
    map_blocks,
    plain_block,
    stored_spans,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, WrongBase
from deltahub.codecs.protocol import BlockMode, Buffer, EncodedBody, Geometry

# How the kernels number the kinds of words. Integers of one width are coded alike.
WORD_KINDS: Final[dict[DType, int]] = {
    DType.F64: 0,
    DType.F32: 1,
    DType.F16: 2,
    DType.BF16: 3,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
    DType.I8: 6,
    DType.U8: 6,
    DType.BOOL: 6,
    DType.I16: 7,
    DType.U16: 7,
    DType.I32: 8,
    DType.U32: 8,
    DType.I64: 9,
    DType.U64: 9,
}

BLOCK_ELEMENTS: Final = 1 << 16


def estimate_bytes(dtype: DType, source: Buffer, base: Buffer) -> int:
    """About how many bytes the codec would take for `source` given `base`, from a sample.

    source, base: the same, positive number of elements. Costs the planning, not the coding.
    """
    return FmDeltaEncoder(WORD_KINDS[dtype], source, base).estimated_bytes


class FmDelta:
    """The delta codec. Always with a base."""

    codec_id: ClassVar[str] = "fm_delta"
    number: ClassVar[int] = 2
    version: ClassVar[int] = 0
    needs_base: ClassVar[bool] = True

    def block_bytes(self, dtype: DType) -> int:
        return BLOCK_ELEMENTS * dtype.itemsize

    def encode(
        self, geometry: Geometry, source: memoryview, base: memoryview | None, threads: int
    ) -> EncodedBody:
        if base is None:
            raise WrongBase("fm_delta codes a tensor against a base, and none was given")
        encoder = FmDeltaEncoder(WORD_KINDS[geometry.dtype], source, base)
        is_promising = encoder.estimated_bytes < geometry.size_bytes

        def encode_block(index: int) -> tuple[BlockMode, Buffer, int]:
            begin, end = geometry.block_bytes(index)
            words = source[begin:end]
            checksum = block_checksum(words, index)
            stream = encoder.encode(words, base[begin:end]) if is_promising else None
            if stream is None:
                return BlockMode.RAW, words, checksum
            return (BlockMode.CODED if stream else BlockMode.UNCHANGED), stream, checksum

        done = map_blocks(encode_block, geometry.n_blocks, threads)
        checksums = [checksum for _, _, checksum in done]
        prelude = encoder.prelude
        coded = [len(stored) for mode, stored, _ in done if mode == BlockMode.CODED]
        decoded = [
            _span_bytes(geometry.block_bytes(i))
            for i, (mode, _, _) in enumerate(done)
            if mode == BlockMode.CODED
        ]
        if len(prelude) + sum(coded) < sum(decoded):
            return EncodedBody(prelude, [(mode, stored) for mode, stored, _ in done], checksums)
        # The tables cost more than they save, as in a tensor of a few elements.
        plain: list[tuple[BlockMode, Buffer]] = []
        for index, (mode, stored, _) in enumerate(done):
            begin, end = geometry.block_bytes(index)
            if mode == BlockMode.CODED:
                mode, stored = BlockMode.RAW, source[begin:end]
            plain.append((mode, stored))
        return EncodedBody(b"", plain, checksums)

    def decode(
        self,
        geometry: Geometry,
        version: int,
        prelude: memoryview,
        first: int,
        modes: list[int],
        lengths: list[int],
        payload: memoryview,
        base: memoryview | None,
        out: memoryview,
        threads: int,
    ) -> None:
        if base is None:
            raise WrongBase("an fm_delta frame decodes against its base, and none was given")
        decode_stream = _decoder(geometry.dtype, prelude)
        spans = list(decoded_spans(geometry, first, len(modes)))
        stored = stored_spans(lengths)

        def decode_block(i: int) -> None:
            words = out[spans[i][0] : spans[i][1]]
            from_base = base[spans[i][0] : spans[i][1]]
            stream = payload[stored[i][0] : stored[i][1]]
            if plain_block(modes[i], stream, from_base, words):
                return
            try:
                decode_stream(stream, from_base, words)
            except ValueError as exc:
                raise CorruptFrame(f"block {first + i}: {exc}") from exc

        map_blocks(decode_block, len(modes), threads)


def _span_bytes(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _decoder(
    dtype: DType, prelude: memoryview
) -> Callable[[memoryview, memoryview, memoryview], None]:
    if len(prelude) == 0:  # what an encoder writes where no block is coded

        def refuse(stream: memoryview, base: memoryview, out: memoryview) -> None:
            raise ValueError("a coded block, but the frame has no tables")

        return refuse
    try:
        return FmDeltaDecoder(WORD_KINDS[dtype], prelude).decode
    except ValueError as exc:
        raise CorruptFrame(f"fm_delta prelude: {exc}") from exc
