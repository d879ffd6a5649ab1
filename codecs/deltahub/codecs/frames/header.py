"""The header of a frame: its elements, their tensor, the codec and the base plan.

The byte table is in codecs/spec/frame.md. Every number in a header has a limit or follows from
other fields, and is checked before memory is allocated for it.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

import xxhash

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, InvalidInput, UnsupportedVersion
from deltahub.codecs.frames.base_plan import MAX_SEGMENTS, MAX_TENSOR_BYTES, BasePlan, BaseSegment
from deltahub.codecs.frames.views.packed import (
    MAX_VIEW,
    MIN_VIEW,
    pack_view,
    packed_size,
    parse_view,
)
from deltahub.codecs.ids import ID_BYTES
from deltahub.codecs.protocol import Buffer, Codec, Geometry
from deltahub.codecs.registry import BY_ID, codec_for

MAGIC: Final = b"DHFR"
FRAME_VERSION: Final = 3
# Frames without further inputs have version 1, those with them version 2; version 3 has a view.
_FIRST_VERSION: Final = 1
_INPUTS_VERSION: Final = 2
MAX_INPUTS: Final = 4
MAX_FRAME: Final = 64 << 20  # decoded bytes
MAX_BLOCK: Final = 16 << 20  # decoded bytes
MAX_BLOCKS: Final = 1 << 16
MAX_PRELUDE: Final = 1 << 20

FIXED: Final = struct.Struct("<4sBBBBIIQQQQQQ32sIIIBBHB7x")
_BEGIN: Final = struct.Struct("<4sB3xI4x")
_UNUSED: Final = struct.Struct("<113x7s")  # the padding bytes of FIXED
SEGMENT: Final = struct.Struct("<32sB7xQQ")
CHECKSUM: Final = struct.Struct("<Q")
TABLE_ROW: Final = struct.Struct("<IB3xQ")
MAX_HEADER: Final = FIXED.size + MAX_SEGMENTS * SEGMENT.size + MAX_VIEW + CHECKSUM.size


# Not frozen, because one is made for each frame: a frozen dataclass takes three times as long.
@dataclass(slots=True, unsafe_hash=True)
class FrameHeader:
    """A header's fields. parse_header returns only those that pass check_header."""

    codec: str
    codec_version: int
    dtype: DType  # the coding dtype
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

    @property
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

    def base_bytes(self, decoded_bytes: int) -> int:
        """The bytes of the aligned inputs for so many decoded bytes."""
        return 0 if self.base is None else self.base.n_inputs * decoded_bytes

    @property
    def prefix_length(self) -> int:
        """Bytes before the body: header, prelude, block table, checksums."""
        table = self.n_blocks * TABLE_ROW.size
        return self.header_length + self.prelude_length + table + CHECKSUM.size

    @property
    def frame_length(self) -> int:
        return self.prefix_length + self.body_length

    def to_bytes(self) -> bytes:
        checked = self.fields()
        return checked + CHECKSUM.pack(xxhash.xxh3_64_intdigest(checked))

    def fields(self) -> bytes:
        """The header's bytes without its checksum."""
        segments = self.base.segments if self.base is not None else ()
        n_further = self.base.n_inputs - 1 if self.base is not None else 0
        view = self.base.view if self.base is not None else None
        version = _FIRST_VERSION if n_further == 0 else _INPUTS_VERSION
        parts = [
            FIXED.pack(
                MAGIC,
                version if view is None else FRAME_VERSION,
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
                n_further,
                len(segments),
                self.effort,
            )
        ]
        parts += [SEGMENT.pack(s.tensor, s.dtype.code, s.start, s.count) for s in segments]
        if view is not None:
            parts.append(pack_view(view))
        return b"".join(parts)


def header_length(plan: BasePlan | None) -> int:
    """Bytes of the header of a frame with this plan."""
    n_segments = 0 if plan is None else len(plan.segments)
    length = FIXED.size + n_segments * SEGMENT.size + CHECKSUM.size
    return length if plan is None or plan.view is None else length + packed_size(plan.view)


_TENSOR: Final = slice(64, 96)  # the tensor's id in FIXED


def name_tensor(frame: bytearray, tensor: bytes) -> None:
    """Write the tensor's id into a frame that was encoded before the id was known.

    Nothing else in a frame depends on the id. InvalidInput if the id has another length than
    ID_BYTES; CorruptFrame if the header is not valid.
    """
    if len(tensor) != ID_BYTES:
        raise InvalidInput(f"a tensor id has {ID_BYTES} bytes, not {len(tensor)}")
    header = parse_header(frame)
    frame[_TENSOR] = tensor
    end = header.header_length
    checked = memoryview(frame)[: end - CHECKSUM.size]
    checksum = CHECKSUM.pack(xxhash.xxh3_64_intdigest(checked))
    checked.release()
    frame[end - CHECKSUM.size : end] = checksum


def choose_geometry(codec: Codec, dtype: DType, rows: int, columns: int) -> Geometry:
    """The blocks that an encoder splits a frame into: about equal, within the codec's limit.

    More than one block of whole rows means an even number, so that two threads share them evenly.
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
    """The blocks of the format's raw frame, whose length no frame may exceed."""
    block = BY_ID["raw"].block_bytes(dtype) // dtype.itemsize
    if columns > block:
        return Geometry(dtype, rows, columns, 1, -(-columns // block))
    return Geometry(dtype, rows, columns, min(rows, block // columns), 1)


def raw_frame_length(dtype: DType, rows: int, columns: int) -> int:
    """The length of a raw frame of these elements, which no frame may exceed."""
    block = BY_ID["raw"].block_bytes(dtype) // dtype.itemsize
    n_blocks = rows * -(-columns // block) if columns > block else -(-rows // (block // columns))
    fixed = FIXED.size + 2 * CHECKSUM.size
    return fixed + n_blocks * TABLE_ROW.size + rows * columns * dtype.itemsize


def peek_header_length(first16: Buffer) -> int:
    """How many bytes parse_header needs, from a frame's first 16 bytes."""
    if len(first16) < 16:
        raise CorruptFrame(f"a frame of {len(first16)} bytes ends within its header")
    magic, version, length = _BEGIN.unpack_from(first16)
    if magic != MAGIC:
        raise CorruptFrame(f"a frame begins with {MAGIC!r}, not {magic!r}")
    if not _FIRST_VERSION <= version <= FRAME_VERSION:
        raise UnsupportedVersion(
            f"frame version {version}; this release reads up to {FRAME_VERSION}"
        )
    segments, rest = divmod(length - FIXED.size - CHECKSUM.size, SEGMENT.size)
    is_possible = rest == 0 and 0 <= segments <= MAX_SEGMENTS
    if version == FRAME_VERSION:
        is_possible = FIXED.size + MIN_VIEW + CHECKSUM.size <= length <= MAX_HEADER
    if not is_possible:
        raise CorruptFrame(f"no frame header is {length} bytes long")
    return int(length)


def parse_header(buffer: Buffer) -> FrameHeader:
    """The header at the start of `buffer`; later bytes are ignored. CorruptFrame if it is invalid,
    UnsupportedVersion for another frame version.
    """
    view = memoryview(buffer).cast("B")
    length = peek_header_length(view)
    if len(view) < length:
        raise CorruptFrame(f"a frame header of {length} bytes is cut off after {len(view)}")
    checked = length - CHECKSUM.size
    if xxhash.xxh3_64_intdigest(view[:checked]) != CHECKSUM.unpack_from(view, checked)[0]:
        raise CorruptFrame("the frame header's checksum does not match its bytes")
    (
        _, frame_version, number, version, dtype_code, _, prelude_length, body_length,
        rows, columns, start, count, tensor_count, tensor, rows_per_block, parts, n_blocks,
        is_cast, n_further, n_segments, effort,
    ) = FIXED.unpack_from(view)  # fmt: skip
    has_view = frame_version == FRAME_VERSION
    end = FIXED.size + n_segments * SEGMENT.size
    if (checked < end if has_view else checked != end) or is_cast > 1:
        raise CorruptFrame("the frame header's segments do not match its length")
    if n_further >= MAX_INPUTS or (n_further and frame_version != _INPUTS_VERSION):
        raise CorruptFrame(f"a frame of version {frame_version} with {n_further} further inputs")
    if n_further == 0 and frame_version == _INPUTS_VERSION:
        raise UnsupportedVersion(f"frame version {frame_version} without a second input")
    dtype = DType.from_code(dtype_code)
    segments = [*SEGMENT.iter_unpack(view[FIXED.size : end])]
    plan = _parse_plan(segments, bool(is_cast), n_further + 1)
    if has_view:
        if plan is None:
            raise CorruptFrame("a frame without a base has a view")
        plan = replace(plan, view=parse_view(view[end:checked]))
    header = FrameHeader(
        codec_for(number, version).codec_id,
        version,
        dtype,
        rows,
        columns,
        start,
        count,
        tensor_count,
        tensor,
        rows_per_block,
        parts,
        n_blocks,
        plan,
        effort,
        length,
        prelude_length,
        body_length,
    )
    check_header(header)
    repacked = b"".join([SEGMENT.pack(*segment) for segment in segments])
    if _UNUSED.unpack_from(view) != (bytes(7),) or repacked != view[FIXED.size : end]:
        raise CorruptFrame("unused bytes of the frame header are not zero")
    return header


def _parse_plan(
    segments: list[tuple[bytes, int, int, int]], is_cast: bool, n_inputs: int
) -> BasePlan | None:
    if not segments:
        if is_cast or n_inputs > 1:
            raise CorruptFrame("a frame without a base has a cast rule or further inputs")
        return None
    return BasePlan(
        tuple([BaseSegment(t, DType.from_code(code), start, n) for t, code, start, n in segments]),
        is_cast,
        n_inputs,
    )


def check_header(header: FrameHeader) -> None:
    """CorruptFrame if the header's numbers contradict each other or exceed a limit."""
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
    count, itemsize = header.count, header.dtype.itemsize
    if count < 1 or header.rows * header.columns != count:
        return f"{header.rows} rows of {header.columns} are not {count} elements"
    if count * itemsize > MAX_FRAME:
        return f"a frame of {count * itemsize} decoded bytes; at most {MAX_FRAME} are allowed"
    if header.tensor_count * itemsize > MAX_TENSOR_BYTES:
        return f"a tensor of {header.tensor_size_bytes} bytes; at most {MAX_TENSOR_BYTES}"
    if header.start + count > header.tensor_count:
        return "the frame's elements end beyond its tensor"
    return None


def _geometry_fault(header: FrameHeader) -> str | None:
    rows, columns, n_blocks = header.rows, header.columns, header.n_blocks
    rows_per_block, parts = header.rows_per_block, header.parts_per_row
    if not 1 <= rows_per_block <= rows or not 1 <= parts <= columns:
        return "a block has no rows or more than the frame, or a row has empty parts"
    if rows_per_block != 1 and parts != 1:
        return "a block holds whole rows or a part of one, not parts of several"
    part_width = -(-columns // parts)
    if parts != -(-columns // part_width):
        return "the last parts of a row are empty"
    expected = -(-rows // rows_per_block) * parts
    if expected != n_blocks:
        return f"{n_blocks} blocks; the geometry makes {expected}"
    if n_blocks > MAX_BLOCKS:
        return f"{n_blocks} blocks; at most {MAX_BLOCKS} are allowed"
    if rows_per_block * part_width * header.dtype.itemsize > MAX_BLOCK:
        return f"a block of more than {MAX_BLOCK} decoded bytes"
    return None


def _base_fault(header: FrameHeader) -> str | None:
    base = header.base
    n_inputs = 0 if base is None else base.n_inputs
    if BY_ID[header.codec].n_inputs != n_inputs:
        return f"codec {header.codec} with {n_inputs} inputs"
    if base is None:
        return None
    return base.fault(header.tensor, header.dtype, header.count)
