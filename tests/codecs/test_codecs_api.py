"""What deltahub.codecs promises to other packages: names, error codes, numbers of codecs."""

import pytest

import deltahub.codecs as codecs
from deltahub.codecs import BY_ID, BY_NUMBER, CodecError, DType, UnknownCodec
from deltahub.codecs.registry import get_codec

NAMES = """
BY_ID BY_NUMBER BasePlan BaseSegment BlockMode Buffer CASTABLE Codec CodecError CorruptFrame
CorruptPack CorruptRecipe DType EncodedBody FilePiece FilePlan FrameHeader FrameRange FrameView
Geometry HEADER_BITS HeaderLimits ID_BYTES InvalidInput InvalidSafetensors Literal MAX_BLOCK
MAX_FRAME MAX_PACK MAX_PRELUDE PackEntry PackSummary PackWriter Piece Recipe SafetensorsHeader
TensorInfo TensorRef TensorSpec TooLarge UnknownCodec UnsupportedVersion WrongBase ZERO_ID assemble
cast coding_dtype decode_frame encode_frame join_byte_groups layout make_recipe
open_frame parse_header parse_safetensors_header peek_header_length plan_file raw_frame_length
read_index
safetensors_header_length shape_to_rows split_frames tensor_id tensor_id_of_chunks tensor_spec
verify_pack_hash
"""


def test_the_public_names_are_these() -> None:
    assert sorted(codecs.__all__) == sorted(NAMES.split())
    assert all(hasattr(codecs, name) for name in codecs.__all__)


def test_every_error_has_its_own_code() -> None:
    codes = {error.__name__: error.code for error in CodecError.__subclasses__()}
    assert codes == {
        "InvalidInput": "invalid_input",
        "CorruptFrame": "corrupt_frame",
        "UnsupportedVersion": "unsupported_version",
        "UnknownCodec": "unknown_codec",
        "WrongBase": "wrong_base",
        "CorruptPack": "corrupt_pack",
        "CorruptRecipe": "corrupt_recipe",
        "InvalidSafetensors": "invalid_safetensors",
        "TooLarge": "too_large",
    }


def test_codec_numbers_are_never_reused() -> None:
    assert {codec.codec_id: number for number, codec in BY_NUMBER.items()} == {
        "raw": 0,
        "zstd": 1,
        "fm_delta": 2,
        "neuzip_lossless": 3,
        "masks": 4,
    }
    assert [codec.codec_id for codec in BY_ID.values()] == list(BY_ID)


def test_an_unknown_codec_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownCodec, match="raw, zstd, fm_delta"):
        get_codec("brotli")


def test_dtype_codes_are_never_reused() -> None:
    assert {dtype.code: dtype.name for dtype in DType} == dict(
        enumerate(
            "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 U64 I32 U32 I16 U16 I8 U8 BOOL".split(), start=1
        )
    )
    for dtype in DType:
        assert DType.from_code(dtype.code) is DType.from_name(dtype.name) is dtype
