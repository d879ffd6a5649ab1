"""What no encoder writes is refused, or decodes to bytes that the checksum does not match."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import BlockMode, CorruptFrame, DType, EncodedBody, decode_frame, open_frame
from deltahub.codecs._native import FmDeltaDecoder
from deltahub.codecs.fm_delta import WORD_KINDS
from deltahub.codecs.fm_delta_reference import (
    ESCAPE,
    N_SYMBOLS,
    Context,
    Model,
    Words,
    decode_block,
    encode_block,
    parse_prelude,
    write_prelude,
)
from support.deltas import decode, encode, fine_tune, modes, one_row
from support.frames import make_frame

CASES = {
    "BF16": (DType.BF16, 250, 2e-4),
    "F32": (DType.F32, 150, 1e-5),
    "F64": (DType.F64, 150, 1e-5),
    "I16": (DType.I16, 200, 1e-4),
    "F8_E5M2": (DType.F8_E5M2, 400, 1e-3),
}
every_case = pytest.mark.parametrize("case", list(CASES))


def coded(case: str) -> tuple[DType, int, bytes, bytes, bytes, bytes]:
    """(dtype, count, source, base, prelude, stream) of one coded block."""
    dtype, count, step = CASES[case]
    source, base = fine_tune(dtype, count, step=step)
    body = encode(one_row(dtype, count), source, base)
    assert modes(body) == [BlockMode.CODED]
    return dtype, count, source, base, body.prelude, bytes(body.blocks[0][1])


def with_stream(prelude: bytes, stream: bytes) -> EncodedBody:
    return EncodedBody(prelude, [(BlockMode.CODED, stream)], [0])


def outcome(dtype: DType, count: int, prelude: bytes, stream: bytes, base: bytes) -> bytes | None:
    """What kernel and reference both make of it: the decoded bytes, or None for a refusal."""
    words = Words.of(dtype)
    try:
        expected = decode_block(words, parse_prelude(prelude, words), stream, base)
    except CorruptFrame:
        expected = None
    try:
        decoded = decode(one_row(dtype, count), with_stream(prelude, stream), base)
    except CorruptFrame:
        decoded = None
    assert decoded == expected
    return decoded


@every_case
def test_every_truncation_of_a_stream_is_refused(case: str) -> None:
    dtype, count, source, base, prelude, stream = coded(case)
    for length in range(len(stream)):
        # A cut may leave a stream of other words, as short as it is; never of the same.
        assert outcome(dtype, count, prelude, stream[:length], base) != source
    for tail in (b"\0", b"\1", b"\xff", stream):
        assert outcome(dtype, count, prelude, stream + tail, base) is None


@every_case
def test_every_flipped_bit_of_a_stream_shows(case: str) -> None:
    dtype, _, source, base, prelude, stream = coded(case)
    n_refused = 0
    decoder = FmDeltaDecoder(WORD_KINDS[dtype], prelude)
    for bit in range(8 * len(stream)):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        out = bytearray(len(source))
        try:
            decoder.decode(damaged, base, out)
        except ValueError:
            n_refused += 1
        else:
            assert out != source
    assert n_refused > 0


@every_case
def test_every_flipped_bit_of_a_prelude_shows(case: str) -> None:
    dtype, count, _, base, prelude, stream = coded(case)
    words = Words.of(dtype)
    for bit in range(8 * len(prelude)):
        damaged = bytearray(prelude)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            model = parse_prelude(damaged, words)
        except CorruptFrame:
            with pytest.raises(CorruptFrame):
                decode(one_row(dtype, count), with_stream(bytes(damaged), stream), base)
        else:  # tables of another encoder: well-formed, in their only form
            assert write_prelude(model, words) == damaged


@every_case
def test_every_truncation_of_a_prelude_is_refused(case: str) -> None:
    dtype, count, _, base, prelude, stream = coded(case)
    for changed in [prelude[:length] for length in range(len(prelude))] + [prelude + b"\0"]:
        with pytest.raises(CorruptFrame):
            decode(one_row(dtype, count), with_stream(changed, stream), base)


@every_case
def test_a_frame_with_any_bit_of_its_body_flipped_is_refused(case: str) -> None:
    dtype, count, source, base, _, _ = coded(case)
    frame = make_frame("fm_delta", dtype, 1, count, source, base)
    view, _ = open_frame(frame)
    assert view.header.codec == "fm_delta"
    for bit in range(8 * view.header.header_length, 8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            decode_frame(damaged, base)


@every_case
def test_another_base_is_refused(case: str) -> None:
    dtype, count, source, base, _, _ = coded(case)
    frame = make_frame("fm_delta", dtype, 1, count, source, base)
    chooser = random.Random(0)
    for _ in range(100):
        other = bytearray(base)
        other[chooser.randrange(len(base))] ^= 1 << chooser.randrange(8)
        with pytest.raises(CorruptFrame):
            decode_frame(frame, other)


@every_case
@settings(max_examples=60)
@given(junk=st.binary(max_size=300), keep=st.booleans())
def test_junk_is_refused_by_kernel_and_reference_alike(case: str, junk: bytes, keep: bool) -> None:
    dtype, count, source, base, prelude, _ = coded(case)
    assert outcome(dtype, count, prelude if keep else junk, junk, base) != source


def prelude_of(dtype: DType, *contexts: Context, table_log: int = 7) -> bytes:
    return write_prelude(Model(table_log, contexts), Words.of(dtype))


def frequencies(**changes: int) -> tuple[int, ...]:
    """128 in all: the escape once, the rest to a delta of zero, unless said otherwise (s2=5)."""
    counts = [0] * N_SYMBOLS
    counts[ESCAPE], counts[1] = 1, 127
    for symbol, count in changes.items():
        counts[int(symbol[1:])] = count
    return tuple(counts)


GOOD = Context(0, 3, frequencies())
# One fault each; words of 16 bits reach the cell from 2^15 on with no shift, not with a shift of 3.
FAULTY_PRELUDES = {
    "no tables at all": b"",
    "a table too small": prelude_of(DType.BF16, GOOD, table_log=6),
    "a table too large": prelude_of(DType.BF16, GOOD, table_log=12),
    "frequencies above the sum": prelude_of(DType.BF16, Context(0, 3, frequencies(s2=1, s1=128))),
    "frequencies below the sum": prelude_of(DType.BF16, Context(0, 3, frequencies(s1=120))),
    "no escape": prelude_of(DType.BF16, Context(0, 3, frequencies(s0=0, s1=128))),
    "a shift of all bits": prelude_of(DType.BF16, Context(0, 16, frequencies())),
    "a symbol out of reach": prelude_of(
        DType.BF16, Context(0, 3, frequencies(s1=126, s71=1))
    ),
    "contexts out of order": prelude_of(DType.BF16, GOOD, Context(9, 3, GOOD.frequencies), GOOD),
    "a context twice": prelude_of(
        DType.BF16, GOOD, Context(9, 3, GOOD.frequencies), Context(9, 3, GOOD.frequencies)
    ),
    "a second context before the first": prelude_of(DType.BF16, GOOD, GOOD),
    "bits after the end": prelude_of(DType.BF16, GOOD) + b"\0",
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTY_PRELUDES))
def test_a_faulty_prelude_is_refused(fault: str) -> None:
    assert outcome(DType.BF16, 100, FAULTY_PRELUDES[fault], b"\1" * 20, bytes(200)) is None


def test_integers_have_one_context() -> None:
    twice = prelude_of(DType.I16, GOOD, GOOD)
    assert outcome(DType.I16, 100, twice, b"\1" * 20, bytes(200)) is None


def test_a_prelude_without_faults_is_the_yardstick() -> None:
    words, base = Words.of(DType.BF16), bytes(200)
    model = Model(7, (GOOD,))
    stream = encode_block(words, model, base, base)
    assert outcome(DType.BF16, 100, write_prelude(model, words), stream, base) == base


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        ("empty", b""),
        ("no marker bit", b"\0"),
        ("only a marker bit", b"\1"),
        ("zero bytes after the marker", b"\1\0"),
        ("all ones", b"\xff" * 64),
    ],
)
def test_a_faulty_stream_is_refused(fault: str, stream: bytes) -> None:
    prelude = prelude_of(DType.BF16, GOOD)
    assert outcome(DType.BF16, 100, prelude, stream, bytes(200)) is None, fault


def test_a_stream_that_ends_in_another_state_is_refused() -> None:
    """The lanes' last states are prescribed, so that words have one stream only."""
    words, base = Words.of(DType.BF16), bytes(200)
    model = Model(7, (GOOD,))
    prelude = write_prelude(model, words)
    stream = int.from_bytes(encode_block(words, model, base, base), "little")
    refused = 0
    for lane in range(8):
        n_bits = stream.bit_length() - 1
        changed = stream ^ 1 << (n_bits - 7 * (lane + 1))
        data = changed.to_bytes((changed.bit_length() + 7) // 8, "little")
        refused += outcome(DType.BF16, 100, prelude, data, base) is None
    assert refused == 8
