"""Codec 0, raw: every block is stored as it is. The measure that no other codec may exceed."""

from typing import ClassVar

from deltahub.codecs.blocks import (
    block_checksum,
    decoded_spans,
    map_blocks,
    raw_blocks,
    stored_spans,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import BlockMode, Effort, EncodedBody, Geometry


class Raw:
    """Blocks of about 1 MiB: small enough to answer a short Range without reading much more."""

    codec_id: ClassVar[str] = "raw"
    number: ClassVar[int] = 0
    version: ClassVar[int] = 1
    needs_base: ClassVar[bool] = False

    def block_bytes(self, dtype: DType) -> int:
        return 1 << 20

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
    ) -> EncodedBody:
        spans = list(decoded_spans(geometry, 0, geometry.n_blocks))
        checksums = map_blocks(
            lambda i: block_checksum(source[slice(*spans[i])], i), len(spans), threads
        )
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
        if len(prelude) != 0:
            raise CorruptFrame("a raw frame has no prelude")
        if any(mode != BlockMode.RAW for mode in modes):
            raise CorruptFrame("a raw frame has raw blocks only")
        # Raw blocks are as long as what they decode to, so both sides have the same spans.
        for begin, end in stored_spans(lengths):
            out[begin:end] = payload[begin:end]
