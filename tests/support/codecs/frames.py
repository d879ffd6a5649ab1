"""Frames for tests, and frames with forged fields and valid checksums."""

from typing import Any

import numpy as np
import xxhash

from deltahub.codecs import (
    BY_ID,
    BasePlan,
    BaseSegment,
    DType,
    FrameView,
    TensorSpec,
    encode_frame,
    split_frames,
    tensor_id,
)
from deltahub.codecs.frames.header import CHECKSUM, FIXED, SEGMENT, TABLE_ROW

# In the order of FIXED, the fixed fields of a frame header.
FIELDS = (
    "magic version codec codec_version dtype header_length prelude_length body_length rows columns"
    " start count tensor_count tensor rows_per_block parts_per_row n_blocks cast n_further"
    " n_segments effort"
).split()


def make_pair(dtype: DType, count: int, seed: int = 0) -> tuple[bytes, bytes]:
    """(fine-tune, base): `count` elements with small differences, so that fm_delta pays."""
    random = np.random.default_rng(seed)
    base = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    words = base.copy().view(f"<u{dtype.itemsize}")
    change = random.integers(0, 3, count).astype(words.dtype)
    change[random.random(count) < 0.5] = 0
    words ^= change
    return words.tobytes(), base.tobytes()


BASE_ID = tensor_id(b"a base")


def plan_on(base: bytes, dtype: DType) -> BasePlan:
    """The plan of a base that is one tensor. Frames check only that the ids differ."""
    segment = BaseSegment(BASE_ID, dtype, 0, len(base) // dtype.itemsize)
    return BasePlan((segment,), is_cast=False)


def make_frame(
    codec: str, dtype: DType, rows: int, columns: int, source: bytes, base: bytes, threads: int = 1
) -> bytes:
    """One frame with a whole tensor; `base` is used if the codec needs one."""
    spec = TensorSpec(tensor_id(source), dtype, rows, columns)
    (part,) = split_frames(spec)
    if BY_ID[codec].n_inputs == 0:
        return encode_frame(spec, part, source, codec=codec, threads=threads)
    plan = plan_on(base, dtype)
    return encode_frame(spec, part, source, base, plan, codec, threads)


def base_for(frame: bytes, base: bytes) -> bytes | None:
    """`base` if the frame has one. A frame that fell back to raw has none."""
    return base if FrameView.parse(frame).header.base is not None else None


def forge_header(frame: bytes, segments: bytes | None = None, **changes: Any) -> bytes:
    """The frame with header fields (or all segments) replaced and a valid header checksum."""
    values = dict(zip(FIELDS, FIXED.unpack_from(frame), strict=True))
    length = values["header_length"]
    old_segments = frame[FIXED.size : length - CHECKSUM.size]
    head = FIXED.pack(*(values | changes).values())
    return seal(head + (old_segments if segments is None else segments)) + frame[length:]


def forge_segments(*segments: tuple[bytes, int, int, int]) -> bytes:
    return b"".join(SEGMENT.pack(*segment) for segment in segments)


def forge_table(frame: bytes, rows: list[tuple[int, int, int]], body: bytes) -> bytes:
    """The frame with another block table (length, mode, checksum), body and valid lengths."""
    header = FrameView.parse(frame).header
    prelude = frame[header.header_length : header.header_length + header.prelude_length]
    table = b"".join(TABLE_ROW.pack(*row) for row in rows)
    head = forge_header(frame[: header.header_length], body_length=len(body))
    return head + seal(prelude + table) + body


def table_of(frame: bytes) -> list[tuple[int, int, int]]:
    header = FrameView.parse(frame).header
    begin = header.header_length + header.prelude_length
    table = frame[begin : header.prefix_length - CHECKSUM.size]
    return [(length, mode, check) for length, mode, check in TABLE_ROW.iter_unpack(table)]


def seal(data: bytes) -> bytes:
    return data + CHECKSUM.pack(xxhash.xxh3_64_intdigest(data))
