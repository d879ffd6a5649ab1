"""The header of a frame: what it holds, of which tensor, coded how, against which base.

The byte table is in codecs/spec/frame.md. Every number read here has a cap or is derived from
others, and is checked before anything is allocated for it.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import xxhash

from deltahub.codecs.base_plan import MAX_SEGMENTS, MAX_TENSOR_BYTES, BasePlan, BaseSegment
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, UnsupportedVersion
from deltahub.codecs.protocol import Buffer, Codec, Geometry
from deltahub.codecs.registry import BY_ID, codec_for

MAGIC: Final = b"DHFR"
FRAME_VERSION: Final = 1
MAX_FRAME: Final = 64 << 20  # decoded bytes
MAX_BLOCK: Final = 16 << 20  # decoded bytes
MAX_BLOCKS: Final = 1 << 16
MAX_PRELUDE: Final = 1 << 20

FIXED: Final = struct.Struct("<4sBBBBIIQQQQQQ32sIIIBxHB7x")
SEGMENT: Final = struct.Struct("<32sB7xQQ")
CHECKSUM: Final = struct.Struct("<Q")
TABLE_ROW: Final = struct.Struct("<IB3xQ")
MAX_HEADER: Final = FIXED.size + MAX_SEGMENTS * SEGMENT.size + CHECKSUM.size


@dataclass(frozen=True)
class FrameHeader:
    """A checked header: its numbers fit together and lie within the format's limits."""

    codec: str
    codec_version: int
    dtype: DType  # of coding
    rows: int  # of this frame
    columns: int
    start: int  # first element of the tensor that this frame holds
    count: int  # elements in this frame = rows * columns
    tensor_count: int  # elements of the whole tensor, in the coding dtype
    tensor: bytes  # id of the whole tensor
    rows_per_block: int
    parts_per_row: int
    n_blocks: int
    base: BasePlan | None
    effort: int
    header_length: int
    prelude_length: int
    body_length: int

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry(
            self.dtype, self.rows, self.columns, self.rows_per_block, self.parts_per_row
        )

    @property
    def start_byte(self) -> int:
        """Where the frame's decoded bytes begin in the tensor."""
        return self.start * self.dtype.itemsize

    @property
    def size_bytes(self) -> int:
        """Decoded bytes of this frame."""
        return self.count * self.dtype.itemsize

    @property
    def tensor_size_bytes(self) -> int:
        return self.tensor_count * self.dtype.itemsize

    @property
    def prefix_length(self) -> int:
        """Bytes before the body: header, prelude, block table, checksums."""
        table = self.n_blocks * TABLE_ROW.size
        return self.header_length + self.prelude_length + table + CHECKSUM.size

    @property
    def frame_length(self) -> int:
        return self.prefix_length + self.body_length

    def to_bytes(self) -> bytes:
        segments = self.base.segments if self.base is not None else ()
        parts = [
            FIXED.pack(
                MAGIC,
                FRAME_VERSION,
                BY_ID[self.codec].number,
                self.codec_version,
                self.dtype.code,
                self.header_length,
                self.prelude_length,
                self.body_length,
                self.rows,
                self.columns,
                self.start,
                self.count,
                self.tensor_count,
                self.tensor,
                self.rows_per_block,
                self.parts_per_row,
                self.n_blocks,
                int(self.base is not None and self.base.is_cast),
                len(segments),
                self.effort,
            )
        ]
        parts += [SEGMENT.pack(s.tensor, s.dtype.code, s.start, s.count) for s in segments]
        checked = b"".join(parts)
        return checked + CHECKSUM.pack(xxhash.xxh3_64_intdigest(checked))


def choose_geometry(codec: Codec, dtype: DType, rows: int, columns: int) -> Geometry:
    """The blocks that an encoder cuts a frame into: alike, and at most of the codec's size.

    Where there is more than one there is an even number of them, for threads in pairs.
    """
    if codec is BY_ID["raw"]:
        return _raw_geometry(dtype, rows, columns)
    block = min(codec.block_bytes(dtype), MAX_BLOCK) // dtype.itemsize
    if columns > block:
        return Geometry(dtype, rows, columns, 1, -(-columns // block))
    n_blocks = -(-rows // (block // columns))
    if n_blocks > 1:
        n_blocks += n_blocks % 2
    return Geometry(dtype, rows, columns, -(-rows // n_blocks), 1)


def _raw_geometry(dtype: DType, rows: int, columns: int) -> Geometry:
    """As the format has it: no frame is longer than a raw one of these blocks."""
    block = BY_ID["raw"].block_bytes(dtype) // dtype.itemsize
    if columns > block:
        return Geometry(dtype, rows, columns, 1, -(-columns // block))
    return Geometry(dtype, rows, columns, min(rows, block // columns), 1)


def raw_frame_length(dtype: DType, rows: int, columns: int) -> int:
    """The length of a raw frame of these elements, which no frame may exceed."""
    geometry = _raw_geometry(dtype, rows, columns)
    fixed = FIXED.size + 2 * CHECKSUM.size
    return fixed + geometry.n_blocks * TABLE_ROW.size + geometry.size_bytes


def peek_header_length(first16: Buffer) -> int:
    """How many bytes parse_header needs, from a frame's first 16 bytes."""
    if len(first16) < 16:
        raise CorruptFrame(f"a frame of {len(first16)} bytes ends within its header")
    magic, version, length = struct.unpack_from("<4sB3xI", first16)
    if magic != MAGIC:
        raise CorruptFrame(f"a frame begins with {MAGIC!r}, not {magic!r}")
    if version != FRAME_VERSION:
        raise UnsupportedVersion(f"frame version {version}; this release reads {FRAME_VERSION}")
    segments, rest = divmod(length - FIXED.size - CHECKSUM.size, SEGMENT.size)
    if rest != 0 or not 0 <= segments <= MAX_SEGMENTS:
        raise CorruptFrame(f"no frame header is {length} bytes long")
    return int(length)


def parse_header(buffer: Buffer) -> FrameHeader:
    """The header that `buffer` begins with; bytes after it are not looked at."""
    view = memoryview(buffer).cast("B")
    length = peek_header_length(view)
    if len(view) < length:
        raise CorruptFrame(f"a frame header of {length} bytes is cut off after {len(view)}")
    checked = length - CHECKSUM.size
    if xxhash.xxh3_64_intdigest(view[:checked]) != CHECKSUM.unpack_from(view, checked)[0]:
        raise CorruptFrame("the frame header's checksum does not match its bytes")
    fields = FIXED.unpack_from(view)
    n_segments, is_cast = fields[18], fields[17]
    if length != FIXED.size + n_segments * SEGMENT.size + CHECKSUM.size or is_cast > 1:
        raise CorruptFrame("the frame header's segments do not match its length")
    dtype = DType.from_code(fields[4])
    header = FrameHeader(
        codec=codec_for(fields[2], fields[3]).codec_id,
        codec_version=fields[3],
        dtype=dtype,
        rows=fields[8],
        columns=fields[9],
        start=fields[10],
        count=fields[11],
        tensor_count=fields[12],
        tensor=fields[13],
        rows_per_block=fields[14],
        parts_per_row=fields[15],
        n_blocks=fields[16],
        base=_parse_plan(view, n_segments, bool(is_cast)),
        effort=fields[19],
        header_length=length,
        prelude_length=fields[6],
        body_length=fields[7],
    )
    check_header(header)
    if header.to_bytes() != view[:length]:
        raise CorruptFrame("unused bytes of the frame header are not zero")
    return header


def _parse_plan(view: memoryview, n_segments: int, is_cast: bool) -> BasePlan | None:
    if n_segments == 0:
        if is_cast:
            raise CorruptFrame("a frame without a base has a cast rule")
        return None
    rows = SEGMENT.iter_unpack(view[FIXED.size : FIXED.size + n_segments * SEGMENT.size])
    return BasePlan(
        tuple(BaseSegment(t, DType.from_code(code), start, n) for t, code, start, n in rows),
        is_cast,
    )


def check_header(header: FrameHeader) -> None:
    """CorruptFrame if the header's numbers contradict each other or a limit."""
    fault = _range_fault(header) or _geometry_fault(header) or _base_fault(header)
    if fault is None and header.prelude_length > MAX_PRELUDE:
        fault = f"a prelude of {header.prelude_length} bytes; at most {MAX_PRELUDE} are allowed"
    if fault is None and header.frame_length > raw_frame_length(
        header.dtype, header.rows, header.columns
    ):
        fault = "the frame is larger than its elements stored raw"
    if fault is not None:
        raise CorruptFrame(fault)


def _range_fault(header: FrameHeader) -> str | None:
    if header.count < 1 or header.rows * header.columns != header.count:
        return f"{header.rows} rows of {header.columns} are not {header.count} elements"
    if header.size_bytes > MAX_FRAME:
        return f"a frame of {header.size_bytes} decoded bytes; at most {MAX_FRAME} are allowed"
    if header.tensor_size_bytes > MAX_TENSOR_BYTES:
        return f"a tensor of {header.tensor_size_bytes} bytes; at most {MAX_TENSOR_BYTES}"
    if header.start + header.count > header.tensor_count:
        return "the frame's elements end beyond its tensor"
    return None


def _geometry_fault(header: FrameHeader) -> str | None:
    rows_per_block, parts = header.rows_per_block, header.parts_per_row
    if not 1 <= rows_per_block <= header.rows or not 1 <= parts <= header.columns:
        return "a block has no rows or more than the frame, or a row has empty parts"
    if rows_per_block != 1 and parts != 1:
        return "a block holds whole rows or a part of one, not parts of several"
    geometry = header.geometry
    if parts != -(-header.columns // geometry.part_width):
        return "the last parts of a row are empty"
    if geometry.n_blocks != header.n_blocks:
        return f"{header.n_blocks} blocks; the geometry makes {geometry.n_blocks}"
    if header.n_blocks > MAX_BLOCKS:
        return f"{header.n_blocks} blocks; at most {MAX_BLOCKS} are allowed"
    if geometry.block_elements(0)[1] * header.dtype.itemsize > MAX_BLOCK:
        return f"a block of more than {MAX_BLOCK} decoded bytes"
    return None


def _base_fault(header: FrameHeader) -> str | None:
    if BY_ID[header.codec].needs_base != (header.base is not None):
        return f"codec {header.codec} with{'out' if header.base is None else ''} a base"
    if header.base is None:
        return None
    return header.base.fault(header.tensor, header.dtype, header.count)
