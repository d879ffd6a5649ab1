"""Codecs that turn tensors into bytes, and frames, packs and recipes. Pure: no I/O."""

from deltahub.codecs._native import join_byte_groups
from deltahub.codecs.casts import CASTABLE, cast
from deltahub.codecs.dtypes import HEADER_BITS, DType, coding_dtype
from deltahub.codecs.errors import (
    CodecError,
    CorruptFrame,
    CorruptPack,
    CorruptRecipe,
    InvalidInput,
    InvalidSafetensors,
    TooLarge,
    UnknownCodec,
    UnsupportedVersion,
    WrongBase,
)
from deltahub.codecs.files.recipe import Literal, Recipe, TensorRef
from deltahub.codecs.files.safetensors import (
    HeaderLimits,
    Piece,
    SafetensorsHeader,
    TensorInfo,
    layout,
)
from deltahub.codecs.files.safetensors import header_length as safetensors_header_length
from deltahub.codecs.files.safetensors import parse_header as parse_safetensors_header
from deltahub.codecs.files.split import FilePiece, FilePlan, make_recipe, plan_file
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
from deltahub.codecs.frames.pack import (
    MAX_PACK,
    PackEntry,
    PackSummary,
    PackWriter,
    read_index,
    verify_pack_hash,
)
from deltahub.codecs.frames.view import FrameView, decode_frame, open_frame
from deltahub.codecs.ids import ID_BYTES, ZERO_ID, tensor_id, tensor_id_of_chunks
from deltahub.codecs.protocol import BlockMode, Buffer, Codec, EncodedBody, Geometry
from deltahub.codecs.registry import BY_ID, BY_NUMBER

__all__ = [
    "BY_ID",
    "BY_NUMBER",
    "CASTABLE",
    "HEADER_BITS",
    "ID_BYTES",
    "MAX_BLOCK",
    "MAX_FRAME",
    "MAX_PACK",
    "MAX_PRELUDE",
    "ZERO_ID",
    "BasePlan",
    "BaseSegment",
    "BlockMode",
    "Buffer",
    "Codec",
    "CodecError",
    "CorruptFrame",
    "CorruptPack",
    "CorruptRecipe",
    "DType",
    "EncodedBody",
    "FilePiece",
    "FilePlan",
    "FrameHeader",
    "FrameRange",
    "FrameView",
    "Geometry",
    "HeaderLimits",
    "InvalidInput",
    "InvalidSafetensors",
    "Literal",
    "PackEntry",
    "PackSummary",
    "PackWriter",
    "Piece",
    "Recipe",
    "SafetensorsHeader",
    "TensorInfo",
    "TensorRef",
    "TensorSpec",
    "TooLarge",
    "UnknownCodec",
    "UnsupportedVersion",
    "WrongBase",
    "assemble",
    "cast",
    "coding_dtype",
    "decode_frame",
    "encode_frame",
    "join_byte_groups",
    "layout",
    "make_recipe",
    "open_frame",
    "parse_header",
    "parse_safetensors_header",
    "peek_header_length",
    "plan_file",
    "raw_frame_length",
    "read_index",
    "safetensors_header_length",
    "shape_to_rows",
    "split_frames",
    "tensor_id",
    "tensor_id_of_chunks",
    "tensor_spec",
    "verify_pack_hash",
]
