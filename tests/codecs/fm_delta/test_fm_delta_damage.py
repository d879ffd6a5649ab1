"""What no encoder writes is refused: by frames, and by kernels and reference alike.

Frames guard every block, so that damage never shows. Somebody hostile sends sound guards: below
them, kernels and reference accept the same bytes and make the same words of them.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import BlockMode, CodecError, CorruptFrame, DType, Geometry, decode_frame
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference import fm_delta
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.reference.fm_delta_model import ZERO_BITS_VERSION
from support.codecs.coded_frames import CodedFrame, all_parts, delta_frame, float_frame, made_frame
from support.codecs.deltas import fine_tune, modes, one_row, scaled_fine_tune
from support.codecs.kernels import delta_outcome, float_outcome
from support.codecs.small_frames import SMALL_FRAMES

DELTAS = {
    "BF16": delta_frame(one_row(DType.BF16, 250), *fine_tune(DType.BF16, 250)),
    "F64": delta_frame(one_row(DType.F64, 150, 2), *fine_tune(DType.F64, 150, step=1e-9)),
    "I16": delta_frame(one_row(DType.I16, 200), *fine_tune(DType.I16, 200)),
    "F8_E5M2": delta_frame(one_row(DType.F8_E5M2, 400), *fine_tune(DType.F8_E5M2, 400, step=1e-3)),
    "BF16 with scales": delta_frame(
        Geometry(DType.BF16, 32, 32, 20, 1), *scaled_fine_tune(DType.BF16, 32, 32, step=2e-5)
    ),
    "BF16 with all parts": made_frame(all_parts(Geometry(DType.BF16, 14, 50, 9, 1))),
    "F32 with all parts": made_frame(all_parts(Geometry(DType.F32, 4, 130, 1, 2))),
    "F64 with all parts": made_frame(all_parts(Geometry(DType.F64, 3, 40, 3, 1))),
    "F32 with all parts and a stride": made_frame(
        all_parts(Geometry(DType.F32, 5, 60, 2, 1), stride=13)
    ),
}
FLOATS = {
    "floats, BF16": float_frame(DType.BF16, 600, 2),
    "floats, F32": float_frame(DType.F32, 250),
    "floats, F16": float_frame(DType.F16, 250),
    "floats, F8_E4M3": float_frame(DType.F8_E4M3, 400),
}
CASES = DELTAS | FLOATS
WHOLE = CASES | SMALL_FRAMES
every_frame = pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE.keys())
every_delta = pytest.mark.parametrize("case", DELTAS.values(), ids=DELTAS.keys())
every_float = pytest.mark.parametrize("case", FLOATS.values(), ids=FLOATS.keys())


def cut(data: bytes) -> list[bytes]:
    return [data[:length] for length in range(len(data))]


def flipped(data: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def first_shape(case: CodedFrame) -> BlockShape:
    return BlockShape.of(case.geometry, 0)


def delta_of(case: CodedFrame, prelude: bytes, stream: bytes) -> bytes | None:
    """What kernels and reference both make of the first block."""
    assert case.base is not None
    begin, end = case.geometry.block_bytes(0)
    frame = case.geometry.rows, case.geometry.columns
    return delta_outcome(
        case.dtype,
        frame,
        prelude,
        stream,
        case.base[begin:end],
        first_shape(case),
        case.version,
    )


def first_block(case: CodedFrame) -> bytes:
    begin, end = case.geometry.block_bytes(0)
    return case.source[begin:end]


# --- whole frames


@every_frame
def test_the_frames_under_test_are_coded(case: CodedFrame) -> None:
    assert modes(case.body)[0] == BlockMode.CODED
    assert decode_frame(case.frame, case.base) == case.source


def test_the_frames_under_test_have_every_part_that_an_encoder_makes() -> None:
    floats = {dtype for dtype in DType if dtype.is_float}
    for codec in ("fm_delta", "neuzip_lossless"):
        assert floats <= {case.dtype for case in WHOLE.values() if case.codec == codec}
    encoded = [case for case in SMALL_FRAMES.values() if case.codec == "fm_delta"]
    assert {case.body.effort for case in encoded} == set(Effort)
    assert any(set(modes(case.body)) == set(BlockMode) for case in encoded)
    assert modes(SMALL_FRAMES["floats, F16, all modes"].body) == [BlockMode.CODED, BlockMode.RAW]
    for name, case in SMALL_FRAMES.items():
        assert ("low rank" in name) == (case.base is not None and case.model.low_rank is not None)
        assert ("decayed" in name) == (case.base is not None and case.model.decay_steps is not None)
        assert ("stride" in name) == (case.base is not None and case.version == ZERO_BITS_VERSION)


@every_frame
def test_every_truncation_of_a_frame_is_refused(case: CodedFrame) -> None:
    frame = case.frame
    for changed in [*cut(frame), frame + b"\0"]:
        with pytest.raises(CodecError):
            decode_frame(changed, case.base)


@every_frame
def test_every_flipped_bit_of_a_frame_is_refused(case: CodedFrame) -> None:
    for changed in flipped(case.frame):
        with pytest.raises(CodecError):
            decode_frame(changed, case.base)


@every_delta
def test_another_base_is_refused_or_makes_no_difference(case: CodedFrame) -> None:
    """Next to a large product the low bits of a base's word do not count."""
    assert case.base is not None
    chooser, frame = random.Random(0), case.frame
    n_refused = 0
    for _ in range(60):
        other = bytearray(case.base)
        other[chooser.randrange(len(other))] ^= 1 << chooser.randrange(8)
        try:
            assert decode_frame(frame, other) == case.source
        except CorruptFrame:
            n_refused += 1
    assert n_refused == 60 or (n_refused > 20 and case.model.low_rank is not None)


# --- below the guards


def is_told_apart(case: CodedFrame, stream: bytes) -> bool:
    """Whether the stream tells other side numbers than the block's, which may decode alike."""
    model, shape = case.model, first_shape(case)
    readers = model.coder.open(stream), model.coder.open(case.stream())
    mine, theirs = (fm_delta.read_side_values(model, reader, shape) for reader in readers)
    return mine != theirs


@every_delta
def test_a_changed_stream_of_deltas_is_refused_or_another_by_all_alike(case: CodedFrame) -> None:
    stream = case.stream()
    assert delta_of(case, case.body.prelude, stream) == first_block(case)
    changed = cut(stream) + list(flipped(stream))
    changed = random.Random(1).sample(changed, 60)
    changed += [stream + tail for tail in (b"\0", b"\1", b"\xff", stream)]
    n_refused = 0
    for data in changed:
        decoded = delta_of(case, case.body.prelude, data)
        n_refused += decoded is None
        assert decoded != first_block(case) or is_told_apart(case, data)
    assert n_refused > len(changed) // 4


@every_float
def test_a_changed_stream_of_floats_is_refused_or_another_by_all_alike(case: CodedFrame) -> None:
    stream, prelude = case.stream(), case.body.prelude
    n_words = len(first_block(case)) // case.dtype.itemsize
    assert float_outcome(case.dtype, prelude, stream, n_words) == first_block(case)
    changed = cut(stream) + list(flipped(stream))
    changed = random.Random(1).sample(changed, 150)
    changed += [stream + tail for tail in (b"\0", b"\1", b"\xff", stream)]
    for data in changed:
        assert float_outcome(case.dtype, prelude, data, n_words) != first_block(case)


@every_delta
def test_a_changed_prelude_of_deltas_is_refused_or_another_by_all_alike(case: CodedFrame) -> None:
    prelude, stream = case.body.prelude, case.stream()
    changed = random.Random(2).sample(cut(prelude) + list(flipped(prelude)), 100)
    n_refused = 0
    for data in [*changed, prelude + b"\0", prelude + b"\1"]:
        decoded = delta_of(case, data, stream)
        n_refused += decoded is None
    assert n_refused > len(changed) // 5


@every_float
def test_a_changed_prelude_of_floats_is_refused_or_another_by_all_alike(case: CodedFrame) -> None:
    prelude, stream = case.body.prelude, case.stream()
    n_words = len(first_block(case)) // case.dtype.itemsize
    for data in [*cut(prelude), prelude + b"\0"]:
        assert float_outcome(case.dtype, data, stream, n_words) is None
    for data in flipped(prelude):
        float_outcome(case.dtype, data, stream, n_words)


@settings(max_examples=100)
@given(case=st.sampled_from(list(CASES.values())), junk=st.binary(max_size=300), keep=st.booleans())
def test_junk_is_refused_or_another_by_all_alike(case: CodedFrame, junk: bytes, keep: bool) -> None:
    prelude = case.body.prelude if keep else junk
    if case.base is None:
        n_words = len(first_block(case)) // case.dtype.itemsize
        assert float_outcome(case.dtype, prelude, junk, n_words) != first_block(case)
    else:
        assert delta_of(case, prelude, junk) != first_block(case)
