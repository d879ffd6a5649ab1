"""Codec 0, raw: every block is stored as it is. No other codec's frame may be larger."""

from typing import ClassVar

from deltahub.codecs._native import BlockTable
from deltahub.codecs.blocks import block_checksums, decode_plain, raw_blocks
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import Effort, EncodedBody, Geometry


class Raw:
    """Stores blocks of about 1 MiB, so that a short HTTP range needs to read little more."""

    codec_id: ClassVar[str] = "raw"
    number: ClassVar[int] = 0
    version: ClassVar[int] = 1
    n_inputs: ClassVar[int] = 0

    def block_bytes(self, dtype: DType) -> int:
        return 1 << 20

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
        front: int = 0,
    ) -> EncodedBody:
        checksums = block_checksums(geometry, source, threads)
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
        if len(prelude) != 0:
            raise CorruptFrame("a raw frame has no prelude")
        decode_plain(blocks, first, end, payload, None, out, threads)
