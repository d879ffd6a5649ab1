"""Codec 1, zstd: zstd frames of up to 8 MiB decoded, for bytes of unknown meaning.

The format page is codecs/spec/zstd.md.
"""

import threading
from typing import ClassVar, Final

import zstandard

from deltahub.codecs._native import BlockTable
from deltahub.codecs.blocks import GUARD_BYTES, decode_blocks, encode_each_block, guard, unguarded
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import BlockMode, Buffer, Effort, EncodedBody, Geometry

LEVEL: Final = 3
WINDOW_LOG: Final = 23  # a match may reach back to the begin of its block
MAX_BLOCK: Final = 1 << WINDOW_LOG  # 8 MiB decoded


class Zstd:
    """Each block: a 4-byte guard over the stored bytes, then one zstd frame.

    The guard is needed because zstd ignores some bits, but a tensor must have only one frame.
    """

    codec_id: ClassVar[str] = "zstd"
    number: ClassVar[int] = 1
    version: ClassVar[int] = 1
    n_inputs: ClassVar[int] = 0

    def block_bytes(self, dtype: DType) -> int:
        return MAX_BLOCK

    def encode(
        self,
        geometry: Geometry,
        source: memoryview,
        base: memoryview | None,
        effort: Effort,
        threads: int,
        front: int = 0,
    ) -> EncodedBody:
        blocks, checksums = encode_each_block(_compress, geometry, source, threads, front)
        return EncodedBody(prelude=b"", blocks=blocks, checksums=checksums)

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
            raise CorruptFrame("a zstd frame has no prelude")
        decode_blocks(_decompress, geometry, blocks, first, end, payload, out, threads)


class _SampleCompressor(threading.local):
    """A compressor of samples for each thread: making one takes as long as using it."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)


_sample_compressor: Final = _SampleCompressor()


def compressed_size(sample: Buffer) -> int:
    """The estimated size of a coded block of these bytes."""
    return GUARD_BYTES + len(_sample_compressor.compressor.compress(sample))


def zstd_header(size_bytes: int) -> bytes:
    """The only zstd frame header allowed before `size_bytes` of content.

    RFC 8878: magic, descriptor (single segment, no checksum, no dictionary), content size in the
    fewest bytes. The decoder compares, so a stored header cannot demand a larger window.
    """
    magic = b"\x28\xb5\x2f\xfd"
    if size_bytes < 256:
        return magic + b"\x20" + size_bytes.to_bytes(1, "little")
    if size_bytes < 65536 + 256:
        return magic + b"\x60" + (size_bytes - 256).to_bytes(2, "little")
    return magic + b"\xa0" + size_bytes.to_bytes(4, "little")


def _compress(decoded: memoryview) -> tuple[BlockMode, Buffer]:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        window_log=WINDOW_LOG,
        enable_ldm=True,
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
        source_size=len(decoded),
    )
    compressed = zstandard.ZstdCompressor(compression_params=parameters).compress(decoded)
    if GUARD_BYTES + len(compressed) >= len(decoded):
        return BlockMode.RAW, decoded
    if not compressed.startswith(zstd_header(len(decoded))):
        raise AssertionError("zstd wrote a frame header that our decoder refuses")
    return BlockMode.CODED, guard(compressed) + compressed


def _decompress(stored: memoryview, out: memoryview) -> None:
    if len(out) > MAX_BLOCK:
        raise CorruptFrame(f"a zstd block of {len(out)} bytes; at most {MAX_BLOCK} are allowed")
    compressed, header = unguarded(stored), zstd_header(len(out))
    if compressed[: len(header)] != header:
        raise CorruptFrame("a zstd block has a damaged header")
    try:
        decoded = zstandard.ZstdDecompressor(max_window_size=MAX_BLOCK).decompress(
            compressed, max_output_size=len(out), allow_extra_data=False
        )
    except zstandard.ZstdError as exc:
        raise CorruptFrame(f"a zstd block does not decode: {exc}") from exc
    if len(decoded) != len(out):
        raise CorruptFrame(f"a zstd block holds {len(decoded)} bytes, not {len(out)}")
    out[:] = decoded
