"""neuzip_lossless: floats on their own, coded by their exponents; signs and mantissas hardly are.

Format: codecs/spec/neuzip_lossless.md. The work is done by the native kernels.
"""

from typing import ClassVar, Final

from deltahub.codecs._native import NeuzipDecoder, NeuzipEncoder
from deltahub.codecs.blocks import (
    GUARD_BYTES,
    decode_blocks,
    decode_run,
    encoded_blocks,
    guard,
    raw_blocks,
    unguarded,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import BlockMode, Buffer, Effort, EncodedBody, Geometry
from deltahub.codecs.words import WORD_KINDS

BLOCK_ELEMENTS: Final = 1 << 17


class NeuzipLossless:
    """The standalone codec of floats. Integers are stored raw."""

    codec_id: ClassVar[str] = "neuzip_lossless"
    number: ClassVar[int] = 3
    version: ClassVar[int] = 2
    needs_base: ClassVar[bool] = False

    def block_bytes(self, dtype: DType) -> int:
        return BLOCK_ELEMENTS * dtype.itemsize

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
    ) -> EncodedBody:
        encoder = plan(geometry.dtype, source)
        if encoder is not None and encoder.estimated_bytes >= geometry.size_bytes:
            encoder = None

        def encode_block(index: int) -> tuple[BlockMode, Buffer]:
            begin, end = geometry.block_bytes(index)
            words = source[begin:end]
            stream = encoder.encode(words) if encoder is not None else None
            if stream is None or GUARD_BYTES + len(stream) >= len(words):
                return BlockMode.RAW, words
            return BlockMode.CODED, guard(stream) + stream

        blocks, checksums = encoded_blocks(encode_block, geometry, source, threads)
        saved = geometry.size_bytes - blocks.size_bytes
        if encoder is not None and saved > len(encoder.prelude):
            return EncodedBody(encoder.prelude, blocks, checksums)
        # The table costs more than it saves, as in a tensor of a few elements.
        del blocks
        return EncodedBody(b"", raw_blocks(geometry, source), checksums)

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
        decoder = _decoder(geometry.dtype, prelude, version)
        if decoder is not None and decode_run(
            decoder.decode_run, geometry, first, modes, lengths, payload, out, threads
        ):
            return

        def decode_block(i: int, stored: memoryview, near: memoryview, words: memoryview) -> None:
            if decoder is None:
                raise CorruptFrame("a coded block, but the frame has no table")
            try:
                decoder.decode(unguarded(stored), words)
            except ValueError as exc:
                raise CorruptFrame(f"block {i}: {exc}") from exc

        decode_blocks(decode_block, geometry, first, modes, lengths, payload, None, out, threads)


def plan(dtype: DType, source: Buffer) -> NeuzipEncoder | None:
    """The table of some floats; None where there is none to be had."""
    if not dtype.is_float:
        return None
    try:
        return NeuzipEncoder(WORD_KINDS[dtype], source)
    except ValueError:  # more exponents than a table holds, as in random bits
        return None


def _decoder(dtype: DType, prelude: memoryview, version: int) -> NeuzipDecoder | None:
    """None for an empty prelude, which an encoder writes where no block is coded."""
    if len(prelude) == 0:
        return None
    try:
        return NeuzipDecoder(WORD_KINDS[dtype], prelude, version)
    except ValueError as exc:
        raise CorruptFrame(f"neuzip_lossless prelude: {exc}") from exc
