"""Damaged frames end in the error of the native core, and kernels stay within their memory.

test_sanitized.py runs this file again under AddressSanitizer.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CodecError, DType, Geometry
from support.codecs.coded_frames import all_parts, float_frame, made_frame
from support.codecs.small_frames import SMALL_FRAMES
from support.cuda.damage import (
    coded_blocks,
    emulated_outcome,
    native_outcome,
    stream_of,
    with_stream,
)
from support.cuda.decoding import decode_opened, opened
from support.cuda.kernels import EmulatedDevice

CASES = {
    **SMALL_FRAMES,
    "BF16, all parts": made_frame(all_parts(Geometry(DType.BF16, 20, 40, 7, 1))),
    "F64, all parts": made_frame(all_parts(Geometry(DType.F64, 20, 40, 7, 1))),
    "floats, BF16": float_frame(DType.BF16, 900, 3),
    "floats, F32": float_frame(DType.F32, 500),
}
NAMES = st.sampled_from(sorted(CASES))
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=150)
@given(name=NAMES, seed=SEEDS, choice=st.data())
def test_a_flipped_bit_of_a_stream(name: str, seed: int, choice: st.DataObject) -> None:
    case = CASES[name]
    index = choice.draw(st.sampled_from(coded_blocks(case)))
    stream = bytearray(stream_of(case, index))
    bit = choice.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    damaged = with_stream(case, index, bytes(stream))
    assert emulated_outcome(damaged, case.base, seed) == native_outcome(damaged, case.base)


@settings(max_examples=100)
@given(name=NAMES, seed=SEEDS, fill=st.sampled_from([None, 0x00, 0x01, 0xFF]), choice=st.data())
def test_a_stream_of_junk(name: str, seed: int, fill: int | None, choice: st.DataObject) -> None:
    case = CASES[name]
    index = choice.draw(st.sampled_from(coded_blocks(case)))
    n = len(stream_of(case, index))
    junk = np.random.default_rng(seed).bytes(n) if fill is None else bytes([fill]) * n
    damaged = with_stream(case, index, junk)
    outcome = emulated_outcome(damaged, case.base, seed)
    assert outcome == native_outcome(damaged, case.base)
    assert outcome[0] == "corrupt_frame"


@settings(max_examples=60)
@given(name=NAMES, seed=SEEDS, choice=st.data())
def test_a_flipped_bit_of_the_stored_bytes(name: str, seed: int, choice: st.DataObject) -> None:
    case = CASES[name]
    view, body = opened(case)
    damaged = bytearray(body)
    bit = choice.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    outcome = emulated_outcome((view, damaged), case.base, seed)
    # A guard is checked before anything is decoded; the native core goes from block to block.
    assert outcome == native_outcome((view, bytes(damaged)), case.base)
    assert outcome[0] == "corrupt_frame"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.base is not None])
def test_another_base(name: str) -> None:
    case = CASES[name]
    assert case.base is not None
    other = bytes(byte ^ 1 for byte in case.base)
    assert emulated_outcome(opened(case), other, 0) == native_outcome(opened(case), other)


@settings(max_examples=60)
@given(name=NAMES, choice=st.data())
def test_a_flipped_bit_of_a_prelude(name: str, choice: st.DataObject) -> None:
    case = CASES[name]
    view, body = opened(case)
    prelude = bytearray(view.prelude)
    bit = choice.draw(st.integers(0, 8 * len(prelude) - 1))
    prelude[bit // 8] ^= 1 << bit % 8
    view.prelude = bytes(prelude)
    damaged = view, body
    assert emulated_outcome(damaged, case.base, 0) == native_outcome(damaged, case.base)


def test_a_body_that_is_cut_off() -> None:
    view, body = opened(CASES["floats, BF16"])
    with pytest.raises(CodecError, match="bytes for blocks of"):
        decode_opened(EmulatedDevice(), [(view, body[:-1])], [None])
