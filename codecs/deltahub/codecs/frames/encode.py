"""Splits a tensor into frames, and encodes one frame from its elements."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from math import prod
from typing import Final

import xxhash

from deltahub.codecs._native import encode_delta_frame
from deltahub.codecs.dtypes import HEADER_BITS, DType, coding_dtype
from deltahub.codecs.errors import InvalidInput, TooLarge
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS
from deltahub.codecs.frames.base_plan import MAX_TENSOR_BYTES, BasePlan
from deltahub.codecs.frames.choose_codec import Sample
from deltahub.codecs.frames.header import (
    CHECKSUM,
    MAX_FRAME,
    MAX_PRELUDE,
    TABLE_ROW,
    FrameHeader,
    check_header,
    choose_geometry,
    header_length,
    raw_frame_length,
)
from deltahub.codecs.ids import ID_BYTES
from deltahub.codecs.protocol import BlockMode, Buffer, Codec, Effort, EncodedBody, Geometry
from deltahub.codecs.registry import get_codec
from deltahub.codecs.words import WORD_KINDS

# Stacked matrices have at least so many columns.
_MATRIX_COLUMNS: Final = 64


@dataclass(slots=True, unsafe_hash=True)
class TensorSpec:
    """A whole tensor as the encoder takes it: id, coding dtype, coding rows and columns."""

    tensor: bytes
    dtype: DType
    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns

    @property
    def size_bytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(slots=True, unsafe_hash=True)
class FrameRange:
    """The elements of a tensor that one frame holds, and their rows and columns."""

    start: int
    count: int
    rows: int
    columns: int


def shape_to_rows(shape: Sequence[int]) -> tuple[int, int]:
    """Coding (rows, columns) of a shape: first dimension x rest; 1-D is one row; 0-D is 1 x 1."""
    if len(shape) <= 1:
        return 1, prod(shape)
    return shape[0], prod(shape[1:])


def tensor_spec(tensor: bytes, dtype_name: str, shape: Sequence[int]) -> TensorSpec:
    """The spec of a tensor of any safetensors dtype; a dtype that is no DType becomes U8 bytes.

    Stacked matrices, such as experts, are coded as one matrix with all of their rows. What has a
    short last dimension (a kernel of a convolution) is coded by shape_to_rows.
    """
    dtype = coding_dtype(dtype_name)
    rows, columns = shape_to_rows(shape)
    if len(shape) > 2 and shape[-1] >= _MATRIX_COLUMNS:
        rows, columns = prod(shape[:-1]), shape[-1]
    if dtype.name == dtype_name:
        return TensorSpec(tensor, dtype, rows, columns)
    size_bytes, rest = divmod(rows * columns * HEADER_BITS[dtype_name], 8)
    if rest != 0:
        raise InvalidInput(f"{dtype_name} of shape {list(shape)} does not fill whole bytes")
    if rows == 0 or size_bytes % rows != 0:  # a row ends within a byte
        return TensorSpec(tensor, dtype, 1, size_bytes)
    return TensorSpec(tensor, dtype, rows, size_bytes // rows)


def split_frames(spec: TensorSpec, max_bytes: int = MAX_FRAME) -> list[FrameRange]:
    """The ranges of a tensor's frames, in order: whole rows if a row fits, else parts of one row.

    A tensor without elements has no frames.
    """
    if spec.size_bytes > MAX_TENSOR_BYTES:
        raise TooLarge(f"a tensor of {spec.size_bytes} bytes; at most {MAX_TENSOR_BYTES}")
    limit = max_bytes // spec.dtype.itemsize
    if limit < 1 or max_bytes > MAX_FRAME:
        raise InvalidInput(f"frames of {max_bytes} bytes; 8 to {MAX_FRAME} are allowed")
    if spec.count == 0:
        return []
    columns = spec.columns
    if columns <= limit:
        step = limit // columns
        return [
            FrameRange(row * columns, n * columns, n, columns)
            for row in range(0, spec.rows, step)
            for n in [min(step, spec.rows - row)]
        ]
    return [
        FrameRange(row * columns + left, n, 1, n)
        for row in range(spec.rows)
        for left in range(0, columns, limit)
        for n in [min(limit, columns - left)]
    ]


def encode_frame(
    spec: TensorSpec,
    part: FrameRange,
    source: Buffer,
    base: Buffer | None = None,
    plan: BasePlan | None = None,
    codec: str | Codec = "auto",
    threads: int = 1,
    effort: Effort = Effort.DEFAULT,
) -> bytes:
    """One frame of a tensor's elements, at most as large as a raw frame.

    source: the part's bytes, in the coding dtype. base, plan: the aligned base bytes, of the same
    size for each input, and where they come from; both if the codec needs a base, else neither.
    codec: "auto" takes the codec with the smallest estimate on a sample, with the base, if given,
    or without it; at effort max, floats are coded with and without the base. "delta" codes against
    the base whatever the sample says, because the base was chosen by more than these elements.
    Both return a standalone frame where it is no larger than the delta; at effort fast only a
    sample decides this. Other values name a codec, or are one.
    threads: of the codec; the frame does not depend on their number.
    InvalidInput if the arguments do not fit each other; TooLarge for more than MAX_FRAME bytes.
    """
    view = memoryview(source).cast("B")
    _check_arguments(spec, part, view)
    if not isinstance(codec, str) or codec not in ("auto", "delta"):
        coder = get_codec(codec) if isinstance(codec, str) else codec
        checked = _checked_base(coder, spec, part, base, plan)
        return _encode(spec, part, view, checked, plan, coder, threads, effort)
    aligned = None
    if base is not None or plan is not None or codec == "delta":
        aligned = _checked_base(get_codec("fm_delta"), spec, part, base, plan)
    if aligned is not None and plan is not None and _may_have_clear_delta(spec.dtype, effort):
        clear_delta = _clear_delta(spec, part, view, aligned, plan, threads, effort)
        if clear_delta is not None and effort == Effort.FAST:
            return clear_delta
        if clear_delta is not None:
            sample = Sample(spec.dtype, view)
            return _smaller_frame(spec, part, view, sample, clear_delta, threads, effort)
    sample = Sample(spec.dtype, view)
    coder = get_codec("fm_delta" if codec == "delta" else sample.choose_codec(aligned))
    if not coder.n_inputs:
        standalone = _encode(spec, part, view, None, None, coder, threads, effort)
        if aligned is None or plan is None or spec.dtype not in FLOAT_WORDS:
            return standalone
        if effort == Effort.FAST:
            return standalone
        if effort == Effort.DEFAULT:  # at max a low-rank product may save more
            quick = _clear_delta(spec, part, view, aligned, plan, threads, Effort.FAST)
            if quick is None or len(quick) >= len(standalone):
                return standalone
            del quick
        coder = get_codec("fm_delta")
        delta = _encode(spec, part, view, aligned, plan, coder, threads, effort)
        return standalone if len(standalone) <= len(delta) else delta
    delta = _encode(spec, part, view, aligned, plan, coder, threads, effort)
    return _smaller_frame(spec, part, view, sample, delta, threads, effort)


def _may_have_clear_delta(dtype: DType, effort: Effort) -> bool:
    if effort == Effort.FAST:
        return dtype.is_float
    return effort == Effort.DEFAULT and dtype is DType.BF16


def _clear_delta(
    spec: TensorSpec,
    part: FrameRange,
    source: memoryview,
    base: memoryview,
    plan: BasePlan,
    threads: int,
    effort: Effort,
) -> bytes | None:
    """The delta frame, if a lower bound shows that standalone is larger; else None.

    One native call, because choosing a codec by a sample and assembling the frame in Python took
    as long as the rest of the encoding.
    """
    coder = get_codec("fm_delta")
    geometry = choose_geometry(coder, spec.dtype, part.rows, part.columns)
    header = _header(spec, part, coder, geometry, plan, effort)
    return encode_delta_frame(
        WORD_KINDS[spec.dtype],
        source,
        base,
        part.rows,
        part.columns,
        geometry.rows_per_block,
        geometry.parts_per_row,
        header.fields(),
        raw_frame_length(spec.dtype, part.rows, part.columns),
        effort,
        max(threads, 1),
    )


def _header(
    spec: TensorSpec,
    part: FrameRange,
    coder: Codec,
    geometry: Geometry,
    plan: BasePlan | None,
    effort: int,
    prelude_length: int = 0,
    body_length: int = 0,
    version: int | None = None,
) -> FrameHeader:
    return FrameHeader(
        codec=coder.codec_id,
        codec_version=coder.version if version is None else version,
        dtype=spec.dtype,
        rows=part.rows,
        columns=part.columns,
        start=part.start,
        count=part.count,
        tensor_count=spec.count,
        tensor=spec.tensor,
        rows_per_block=geometry.rows_per_block,
        parts_per_row=geometry.parts_per_row,
        n_blocks=geometry.n_blocks,
        base=plan,
        effort=effort,
        header_length=header_length(plan),
        prelude_length=prelude_length,
        body_length=body_length,
    )


def _smaller_frame(
    spec: TensorSpec,
    part: FrameRange,
    source: memoryview,
    sample: Sample,
    delta: bytes,
    threads: int,
    effort: Effort,
) -> bytes:
    """`delta`, or a standalone frame of the same elements where that is no larger."""
    if not sample.may_be_smaller_standalone(len(delta)):
        return delta
    coder = get_codec(sample.choose_codec(None))
    standalone = _encode(spec, part, source, None, None, coder, threads, effort)
    return standalone if len(standalone) <= len(delta) else delta


def _encode(
    spec: TensorSpec,
    part: FrameRange,
    source: memoryview,
    base: memoryview | None,
    plan: BasePlan | None,
    coder: Codec,
    threads: int,
    effort: Effort,
) -> bytes:
    """The frame of one codec, or a raw frame where that is smaller. Arguments must be checked."""
    geometry = choose_geometry(coder, spec.dtype, part.rows, part.columns)
    prefix_length = header_length(plan) + geometry.n_blocks * TABLE_ROW.size + CHECKSUM.size
    body = coder.encode(geometry, source, base, effort, max(threads, 1), prefix_length)
    sizes = len(body.prelude), body.blocks.size_bytes
    header = _header(spec, part, coder, geometry, plan, body.effort, *sizes, body.version)
    if coder.codec_id != "raw" and _is_too_large(header, body):
        del body
        return _encode(spec, part, source, None, None, get_codec("raw"), threads, effort)
    check_header(header)
    rows = zip(body.blocks.lengths, body.blocks.modes, body.checksums, strict=True)
    checked = body.prelude + b"".join(starmap(TABLE_ROW.pack, rows))
    checksum = CHECKSUM.pack(xxhash.xxh3_64_intdigest(checked))
    return body.blocks.with_prefix(header.to_bytes() + checked + checksum)


def _check_arguments(spec: TensorSpec, part: FrameRange, source: memoryview) -> None:
    if len(spec.tensor) != ID_BYTES:
        raise InvalidInput(f"a tensor id has {ID_BYTES} bytes, not {len(spec.tensor)}")
    if part.count < 1 or part.rows * part.columns != part.count or min(part.rows, part.start) < 0:
        raise InvalidInput(f"{part} holds no elements, or not rows x columns of them")
    if part.start + part.count > spec.count:
        raise InvalidInput(f"{part} ends beyond its tensor of {spec.count} elements")
    if part.count * spec.dtype.itemsize != len(source):
        raise InvalidInput(f"{len(source)} bytes for {part.count} elements of {spec.dtype.name}")
    if len(source) > MAX_FRAME:
        raise TooLarge(f"a frame of {len(source)} bytes; at most {MAX_FRAME} are allowed")


def _checked_base(
    codec: Codec,
    spec: TensorSpec,
    part: FrameRange,
    base: Buffer | None,
    plan: BasePlan | None,
) -> memoryview | None:
    if base is None or plan is None:
        if codec.n_inputs or base is not None or plan is not None:
            raise InvalidInput(
                f"codec {codec.codec_id}: the base bytes, their plan or both are missing"
            )
        return None
    if codec.n_inputs != plan.n_inputs:
        raise InvalidInput(f"codec {codec.codec_id} takes {codec.n_inputs} inputs")
    fault = plan.fault(spec.tensor, spec.dtype, part.count)
    if fault is not None:
        raise InvalidInput(fault)
    view = memoryview(base).cast("B")
    if len(view) != plan.n_inputs * part.count * spec.dtype.itemsize:
        raise InvalidInput(f"a base of {len(view)} bytes for {part.count} elements")
    return view


def _is_too_large(header: FrameHeader, body: EncodedBody) -> bool:
    if body.blocks.modes.count(BlockMode.RAW) == header.n_blocks:
        return True
    limit = raw_frame_length(header.dtype, header.rows, header.columns)
    return header.frame_length >= limit or header.prelude_length > MAX_PRELUDE
