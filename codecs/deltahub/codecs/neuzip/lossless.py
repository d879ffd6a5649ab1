"""Codec 3, neuzip_lossless: floats without a base, whose exponents are entropy coded.

Format: codecs/spec/neuzip_lossless.md. The native kernels do the work.
"""

from typing import ClassVar, Final

from deltahub.codecs._native import BlockTable, NeuzipDecoder, NeuzipEncoder, estimate_floats
from deltahub.codecs.blocks import (
    BlockFault,
    block_checksums,
    decode_plain,
    encode_all_blocks,
    raw_blocks,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import Buffer, Effort, EncodedBody, Geometry
from deltahub.codecs.words import WORD_KINDS

BLOCK_ELEMENTS: Final = 1 << 17


class NeuzipLossless:
    """The standalone codec of floats. Integers are stored raw."""

    codec_id: ClassVar[str] = "neuzip_lossless"
    number: ClassVar[int] = 3
    version: ClassVar[int] = 1
    n_inputs: ClassVar[int] = 0

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
        encoder = plan(geometry.dtype, source)
        if encoder is None or encoder.estimated_bytes >= geometry.size_bytes:
            checksums = block_checksums(geometry, source, threads)
            return EncodedBody(b"", raw_blocks(geometry, source, front), checksums)

        def encode(room: memoryview) -> tuple[list[int], list[int], list[int]]:
            layout = geometry.rows_per_block, geometry.parts_per_row
            return encoder.encode_all(
                geometry.rows, geometry.columns, *layout, source, room, threads
            )

        prelude = encoder.prelude
        blocks, checksums = encode_all_blocks(encode, geometry, front + len(prelude))
        if geometry.size_bytes - blocks.size_bytes > len(prelude):
            return EncodedBody(prelude, blocks, checksums)
        # The table costs more than it saves, as for a tensor of a few elements.
        del blocks
        return EncodedBody(b"", raw_blocks(geometry, source, front), checksums)

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
        if not prelude:  # no block is coded
            decode_plain(blocks, first, end, payload, None, out, threads)
            return
        decoder = _decoder(geometry.dtype, prelude)
        n_intact, fault = decoder.decode_range(blocks, first, end, payload, out, threads)
        if fault:
            raise BlockFault(fault).error(first + n_intact, has_base=False)


def plan(dtype: DType, source: Buffer) -> NeuzipEncoder | None:
    """An encoder for these floats; None for integers, or if no table can code the exponents."""
    if not dtype.is_float:
        return None
    try:
        return NeuzipEncoder(WORD_KINDS[dtype], source)
    except ValueError:  # more exponents than a table holds, as in random bits
        return None


def estimate(dtype: DType, source: Buffer) -> tuple[int, int] | None:
    """(estimated bytes, lower bound) of these floats when encoded; None as `plan`."""
    if not dtype.is_float:
        return None
    try:
        return estimate_floats(WORD_KINDS[dtype], source)
    except ValueError:  # too many exponents, as in `plan`
        return None


def _decoder(dtype: DType, prelude: bytes) -> NeuzipDecoder:
    try:
        return NeuzipDecoder(WORD_KINDS[dtype], prelude)
    except ValueError as exc:
        raise CorruptFrame(f"neuzip_lossless prelude: {exc}") from exc
