"""Damaged and forged frames raise an error and never decode to wrong bytes."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import (
    BY_ID,
    ZERO_ID,
    CodecError,
    CorruptFrame,
    DType,
    FrameView,
    InvalidInput,
    UnknownCodec,
    UnsupportedVersion,
    decode_frame,
    open_frame,
    peek_header_length,
    tensor_id,
)
from deltahub.codecs.frames.header import MAX_HEADER
from support.codecs.deltas import fine_tune
from support.codecs.frames import (
    BASE_ID,
    forge_header,
    forge_segments,
    forge_table,
    make_frame,
    make_pair,
    seal,
    table_of,
)
from support.codecs.masked import masked_frame
from support.codecs.small_frames import SMALL_FRAMES

every_codec = pytest.mark.parametrize("codec", list(BY_ID))

COUNT = 400
SOURCE, BASE = make_pair(DType.F32, COUNT)
TEXT = b"the quick brown fox jumps over the lazy dog, " * 20
RAW = make_frame("raw", DType.U8, 1, len(TEXT), TEXT, TEXT)
ZSTD = make_frame("zstd", DType.U8, 20, len(TEXT) // 20, TEXT, TEXT)
DELTA = make_frame("fm_delta", DType.F32, 20, 20, SOURCE, BASE)
WEIGHTS, _ = fine_tune(DType.BF16, COUNT)
STANDALONE = make_frame("neuzip_lossless", DType.BF16, 20, 20, WEIGHTS, WEIGHTS)
FRAMES = {
    "raw": (RAW, None),
    "zstd": (ZSTD, None),
    "fm_delta": (DELTA, BASE),
    "neuzip_lossless": (STANDALONE, None),
    "masks": masked_frame(DType.BF16, COUNT, scale=0.75),
}


def test_the_frames_under_test_are_of_their_codecs() -> None:
    assert {codec: FrameView.parse(frame).header.codec for codec, (frame, _) in FRAMES.items()} == {
        codec: codec for codec in BY_ID
    }


@every_codec
def test_every_truncation_is_refused(codec: str) -> None:
    frame, base = FRAMES[codec]
    for length in range(len(frame)):
        with pytest.raises(CodecError):
            decode_frame(frame[:length], base)


@every_codec
def test_bytes_after_the_frame_are_refused(codec: str) -> None:
    frame, base = FRAMES[codec]
    with pytest.raises(CorruptFrame):
        decode_frame(frame + b"\0", base)


@every_codec
def test_every_flipped_bit_is_refused(codec: str) -> None:
    frame, base = FRAMES[codec]
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            decode_frame(damaged, base)


@every_codec
@given(data=st.data())
def test_a_damaged_body_never_becomes_other_bytes(codec: str, data: st.DataObject) -> None:
    frame, base = FRAMES[codec]
    body = FrameView.parse(frame).header.prefix_length
    begin = data.draw(st.integers(body, len(frame) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=len(frame) - begin))
    damaged = frame[:begin] + junk + frame[begin + len(junk) :]
    try:
        assert decode_frame(damaged, base) == decode_frame(frame, base)
    except CorruptFrame:
        assert damaged != frame


@given(junk=st.binary(max_size=300))
def test_junk_is_refused(junk: bytes) -> None:
    for candidate in (junk, b"DHFR\x01" + junk):
        with pytest.raises(CodecError):
            decode_frame(candidate)


def test_blocks_swapped_with_their_table_rows_are_refused() -> None:
    source = b"a" * (1 << 20) + b"b" * (1 << 20)
    frame = make_frame("raw", DType.U8, 1, len(source), source, source)
    first, second = table_of(frame)
    assert decode_frame(forge_table(frame, [first, second], source)) == source
    with pytest.raises(CorruptFrame):
        decode_frame(forge_table(frame, [second, first], source[1 << 20 :] + source[: 1 << 20]))


def test_the_same_block_in_another_place_has_another_checksum() -> None:
    zeros = bytes(2 << 20)
    frame = make_frame("raw", DType.U8, 1, len(zeros), zeros, zeros)
    (_, _, first), (_, _, second) = table_of(frame)
    assert first == xxhash.xxh3_64_intdigest(zeros[: 1 << 20], seed=0)
    assert second == xxhash.xxh3_64_intdigest(zeros[: 1 << 20], seed=1)


def test_a_wrong_base_is_refused() -> None:
    _, other = make_pair(DType.F32, COUNT, seed=1)
    with pytest.raises(CorruptFrame):
        decode_frame(DELTA, other)
    for byte in range(0, len(BASE), 37):
        near = bytearray(BASE)
        near[byte] ^= 1
        with pytest.raises(CorruptFrame):
            decode_frame(DELTA, near)


HUGE = (1 << 64) - 1

FORGED_HEADERS = {
    "no rows": {"rows": 0},
    "no elements": {"rows": 0, "count": 0},
    "rows that are not count": {"rows": 2},
    "rows and columns whose product wraps to count": {"rows": 1 << 63, "columns": 1802},
    "a count of 2^64 - 1": {"rows": 1, "columns": HUGE, "count": HUGE, "tensor_count": HUGE},
    "more than 64 MiB": {
        "columns": (64 << 20) + 1,
        "count": (64 << 20) + 1,
        "tensor_count": (64 << 20) + 1,
    },
    "a tensor above the limit": {"tensor_count": (1 << 40) + 1},
    "a range beyond its tensor": {"start": 1},
    "a range that wraps": {"start": HUGE},
    "no rows a block": {"rows_per_block": 0},
    "more rows a block than rows": {"rows_per_block": 2},
    "no parts": {"parts_per_row": 0},
    "more parts than columns": {"parts_per_row": 901, "n_blocks": 901},
    "a last part that is empty": {"parts_per_row": 899, "n_blocks": 899},
    "no blocks": {"n_blocks": 0},
    "one block too many": {"n_blocks": 2},
    "2^32 - 1 blocks": {"n_blocks": (1 << 32) - 1},
    "more than 65536 blocks": {
        "columns": 1 << 17,
        "count": 1 << 17,
        "tensor_count": 1 << 17,
        "parts_per_row": 1 << 17,
        "n_blocks": 1 << 17,
    },
    "a block above 16 MiB": {
        "columns": (1 << 24) + 1,
        "count": (1 << 24) + 1,
        "tensor_count": (1 << 24) + 1,
    },
    "a body above the raw one": {"body_length": len(TEXT) + 1},
    "a body of 2^64 - 1 bytes": {"body_length": HUGE},
    "a body one byte short": {"body_length": len(TEXT) - 1},
    "a prelude of 2^32 - 1 bytes": {"prelude_length": (1 << 32) - 1},
    "a cast without a base": {"cast": 1},
    "an unknown cast rule": {"cast": 2},
    "segments that are not there": {"n_segments": 1},
    "further inputs in version 1": {"n_further": 1},
    "further inputs without a base": {"version": 2, "n_further": 1},
    "more inputs than any codec has": {"version": 2, "n_further": 4},
    "an unknown element type": {"dtype": 0},
    "an element type of a later release": {"dtype": 200},
    "a longer header": {"header_length": 128 + 56},
    "a header between segments": {"header_length": 130},
    "a header of 4 GiB": {"header_length": (1 << 32) - 1},
    "a header of nothing": {"header_length": 0},
    "a delta codec without a base": {"codec": 2, "codec_version": BY_ID["fm_delta"].version},
    "another magic": {"magic": b"DHFX"},
}


@pytest.mark.parametrize("fault", list(FORGED_HEADERS))
def test_a_header_is_refused_that_has(fault: str) -> None:
    assert decode_frame(forge_header(RAW)) == TEXT
    with pytest.raises(CorruptFrame):
        decode_frame(forge_header(RAW, **FORGED_HEADERS[fault]))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"codec": 5}, UnknownCodec),
        ({"codec": 255}, UnknownCodec),
        ({"codec_version": 0}, UnsupportedVersion),
        ({"codec_version": 2}, UnsupportedVersion),
        ({"codec": 2, "codec_version": 0}, UnsupportedVersion),
        ({"codec": 2, "codec_version": 3}, UnsupportedVersion),
        ({"codec": 3, "codec_version": 2}, UnsupportedVersion),
        ({"version": 2}, UnsupportedVersion),
        ({"version": 4}, UnsupportedVersion),
        ({"version": 0}, UnsupportedVersion),
    ],
)
def test_what_a_newer_release_wrote_is_named_as_such(
    changes: dict[str, int], error: type[CodecError]
) -> None:
    with pytest.raises(error):
        decode_frame(forge_header(RAW, **changes))


@pytest.mark.parametrize("offset", range(113, 120))
def test_unused_header_bytes_must_be_zero(offset: int) -> None:
    head = bytearray(RAW[:120])
    head[offset] = 1
    with pytest.raises(CorruptFrame, match="not zero"):
        decode_frame(seal(bytes(head)) + RAW[128:])


@pytest.mark.parametrize("offset", range(33, 40))
def test_unused_segment_bytes_must_be_zero(offset: int) -> None:
    head = bytearray(DELTA[:176])
    head[120 + offset] = 1
    with pytest.raises(CorruptFrame, match="not zero"):
        decode_frame(seal(bytes(head)) + DELTA[184:], BASE)


@pytest.mark.parametrize("offset", [5, 6, 7])
def test_unused_table_bytes_must_be_zero(offset: int) -> None:
    table = bytearray(RAW[128:144])
    table[offset] = 1
    with pytest.raises(CorruptFrame, match="not zero"):
        decode_frame(RAW[:128] + seal(bytes(table)) + RAW[152:])


F32, F16, U8 = DType.F32.code, DType.F16.code, DType.U8.code
ID = BASE_ID

FORGED_PLANS = {
    "too few elements": ((ID, F32, 0, COUNT - 1),),
    "too many elements": ((ID, F32, 0, COUNT), (ID, F32, 0, 1)),
    "an empty segment": ((ID, F32, 0, COUNT), (ID, F32, 0, 0)),
    "a count that wraps": ((ID, F32, 0, HUGE), (ID, F32, 0, COUNT + 1)),
    "a start beyond any tensor": ((ID, F32, HUGE, COUNT),),
    "its own tensor as base": ((tensor_id(SOURCE), F32, 0, COUNT),),
    "another element type and no cast": ((ID, F16, 0, COUNT),),
    "an unknown element type": ((ID, 99, 0, COUNT),),
    "zeros with a start": ((ZERO_ID, F32, 1, COUNT),),
}


@pytest.mark.parametrize("fault", list(FORGED_PLANS))
def test_a_base_plan_is_refused_that_has(fault: str) -> None:
    rows = FORGED_PLANS[fault]
    segments = forge_segments(*rows)
    length = 128 + len(segments)
    with pytest.raises(CorruptFrame):
        decode_frame(
            forge_header(DELTA, segments, header_length=length, n_segments=len(rows)), BASE
        )


def test_a_cast_rule_without_a_cast_is_refused() -> None:
    with pytest.raises(CorruptFrame):
        decode_frame(forge_header(DELTA, cast=1), BASE)


def test_a_cast_between_integers_is_refused() -> None:
    segments = forge_segments((ID, U8, 0, COUNT))
    with pytest.raises(CorruptFrame):
        decode_frame(forge_header(DELTA, segments, cast=1), BASE)


def test_a_plan_of_more_than_4096_segments_is_refused() -> None:
    assert MAX_HEADER == 128 + 4096 * 56 + 40 + 4 * 65536
    with pytest.raises(CorruptFrame):
        peek_header_length(forge_header(RAW, header_length=128 + 4097 * 56))


CHECK = xxhash.xxh3_64_intdigest(TEXT, seed=0)

FORGED_TABLES = {
    "an unknown mode": ([(len(TEXT), 3, CHECK)], TEXT),
    "an unchanged block without a base": ([(0, 0, CHECK)], b""),
    "a raw block that is too short": ([(len(TEXT) - 1, 1, CHECK)], TEXT[1:]),
    "a coded block in a raw frame": ([(5, 2, CHECK)], TEXT[:5]),
    "a coded block of nothing": ([(0, 2, CHECK)], b""),
    "a coded block as long as a raw one": ([(len(TEXT), 2, CHECK)], TEXT),
    "another checksum": ([(len(TEXT), 1, CHECK ^ 1)], TEXT),
}


@pytest.mark.parametrize("fault", list(FORGED_TABLES))
def test_a_block_table_is_refused_that_has(fault: str) -> None:
    assert decode_frame(forge_table(RAW, [(len(TEXT), 1, CHECK)], TEXT)) == TEXT
    with pytest.raises(CorruptFrame):
        decode_frame(forge_table(RAW, *FORGED_TABLES[fault]))


MIXED = SMALL_FRAMES["BF16, all modes"]
CODED, SAME, PLAIN = table_of(MIXED.frame)
BODY = MIXED.frame[FrameView.parse(MIXED.frame).header.prefix_length :]
AFTER_CODED = BODY[CODED[0] :]

FORGED_MIXTURES = {
    "an unknown mode": ([(CODED[0], 3, CODED[2]), SAME, PLAIN], BODY),
    "an unchanged block that stores a byte": (
        [CODED, (1, 0, SAME[2]), PLAIN],
        BODY[: CODED[0]] + b"x" + AFTER_CODED,
    ),
    "a raw block one byte short": ([CODED, SAME, (PLAIN[0] - 1, 1, PLAIN[2])], BODY[:-1]),
    "a coded block of nothing": ([(0, 2, CODED[2]), SAME, PLAIN], AFTER_CODED),
    "a coded block as long as a raw one": (
        [(PLAIN[0], 2, CODED[2]), SAME, PLAIN],
        BODY[: CODED[0]] + bytes(PLAIN[0] - CODED[0]) + AFTER_CODED,
    ),
    "a body with a byte of no block": ([CODED, SAME, PLAIN], BODY + b"x"),
    "a body that lacks a byte": ([CODED, SAME, PLAIN], BODY[:-1]),
}


@pytest.mark.parametrize("fault", list(FORGED_MIXTURES))
def test_a_block_table_of_all_modes_is_refused_before_any_block_that_has(fault: str) -> None:
    rows = [CODED, SAME, PLAIN]
    assert [mode for _, mode, _ in rows] == [2, 0, 1]
    assert decode_frame(forge_table(MIXED.frame, rows, BODY), MIXED.base) == MIXED.source
    with pytest.raises(CorruptFrame):
        FrameView.parse(forge_table(MIXED.frame, *FORGED_MIXTURES[fault]))


@every_codec
def test_a_frame_is_not_opened_that_is_cut_or_goes_on(codec: str) -> None:
    frame, _ = FRAMES[codec]
    for other in (frame[:-1], frame + b"\0", b"x" + frame[1:]):
        with pytest.raises(CorruptFrame):
            open_frame(other)
    with pytest.raises(CorruptFrame):
        peek_header_length(b"x" + frame[1:16])


def test_a_prelude_where_the_codec_has_none_is_refused() -> None:
    for frame in (RAW, ZSTD):
        header = FrameView.parse(frame).header
        spare = b"x" * 8
        rest = seal(spare + frame[header.header_length : header.prefix_length - 8])
        forged = forge_header(frame[: header.header_length], prelude_length=8) + rest
        # A frame of raw size or more would be refused for its size.
        with pytest.raises(CorruptFrame):
            decode_frame(forged + frame[header.prefix_length :])


def test_blocks_that_do_not_exist_are_the_callers_mistake() -> None:
    view, body = open_frame(RAW)
    out = memoryview(bytearray(len(TEXT)))
    for i, j in ((0, 2), (1, 1), (-1, 1), (0, 0)):
        with pytest.raises(InvalidInput):
            view.decode_into(i, j, body, None, out)
    with pytest.raises(InvalidInput):
        view.decode_into(0, 1, body, None, out[1:])
    with pytest.raises(InvalidInput):
        view.block_of_byte(len(TEXT))
    with pytest.raises(CorruptFrame):
        view.decode_into(0, 1, body[1:], None, out)
