"""Writes and reads frames: header, base plan and blocks. Format: codecs/spec/frame.md."""

from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment, assemble
from deltahub.codecs.frames.encode import (
    FrameRange,
    TensorSpec,
    encode_frame,
    shape_to_rows,
    split_frames,
    tensor_spec,
)
from deltahub.codecs.frames.header import (
    MAX_BLOCK,
    MAX_FRAME,
    MAX_PRELUDE,
    FrameHeader,
    parse_header,
    peek_header_length,
    raw_frame_length,
)
from deltahub.codecs.frames.view import FrameView, decode_frame, open_frame

__all__ = [
    "MAX_BLOCK",
    "MAX_FRAME",
    "MAX_PRELUDE",
    "BasePlan",
    "BaseSegment",
    "FrameHeader",
    "FrameRange",
    "FrameView",
    "TensorSpec",
    "assemble",
    "decode_frame",
    "encode_frame",
    "open_frame",
    "parse_header",
    "peek_header_length",
    "raw_frame_length",
    "shape_to_rows",
    "split_frames",
    "tensor_spec",
]
