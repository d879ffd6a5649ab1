"""With codec "auto", an encoder takes the codec that makes a tensor smallest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import DType, FrameView, InvalidInput, TensorSpec, encode_frame, tensor_id
from deltahub.codecs._native import estimate_deltas
from deltahub.codecs.frames.choose_codec import (
    RANGE_ELEMENTS,
    REPEAT_PROBE_BYTES,
    Sample,
    sampled_ranges,
)
from deltahub.codecs.frames.encode import split_frames
from deltahub.codecs.words import WORD_KINDS
from support.codecs.deltas import fine_tune
from support.codecs.frames import plan_on

COUNT = 1 << 16


def codec_of(dtype: DType, source: bytes, base: bytes | None = None) -> str:
    spec = TensorSpec(tensor_id(source), dtype, 1, len(source) // dtype.itemsize)
    (part,) = split_frames(spec)
    plan = None if base is None else plan_on(base, dtype)
    return FrameView.parse(encode_frame(spec, part, source, base, plan)).header.codec


def test_what_a_tensor_is_decides_its_codec() -> None:
    tuned, base = fine_tune(DType.BF16, COUNT)
    noise = np.random.default_rng(0).bytes(2 * COUNT)
    assert codec_of(DType.BF16, tuned, base) == "fm_delta"
    assert codec_of(DType.BF16, tuned) == "neuzip_lossless"
    assert codec_of(DType.U8, b"all work and no play makes a dull boy. " * 3000) == "zstd"
    assert codec_of(DType.U8, noise) == "raw"
    assert codec_of(DType.BF16, tuned[:64], base[:64]) == "raw"


def test_a_delta_below_what_all_exponents_take_is_not_held_against_them_bit_by_bit() -> None:
    """Standalone, the weights take about 66 % of their bytes, and 38 % are raw mantissa bits."""
    _, words = fine_tune(DType.BF16, COUNT)
    sample = Sample(DType.BF16, memoryview(words))
    standalone = 2 * COUNT * 66 // 100
    assert sample.choose_codec(None) == "neuzip_lossless"
    answers = [
        sample.may_be_smaller_standalone(standalone * share // 100) for share in (50, 85, 100)
    ]
    assert answers == [False, False, True]


@pytest.mark.parametrize("n_even", [0, 40, 3000])
def test_a_last_digit_in_any_of_the_first_words_tells_that_it_cannot_be_left_out(
    n_even: int,
) -> None:
    """Standalone, the words take less than a third; only 4 KiB are searched for a last bit."""
    random = np.random.default_rng(0)
    words = random.integers(0x3F80, 0x3F88, COUNT, np.uint16) & 0xFFFE
    begin = COUNT // 2 - RANGE_ELEMENTS // 2  # the probe of zstd, made incompressible
    words[begin : begin + REPEAT_PROBE_BYTES // 2] = 2 * random.integers(0, 1 << 14, 512, np.uint16)
    coded_bytes = COUNT * 2 // 3
    assert Sample(DType.BF16, memoryview(words).cast("B")).may_be_smaller_standalone(coded_bytes)
    words[n_even] |= 1
    is_searched = 2 * n_even < 1 << 12
    sample = Sample(DType.BF16, memoryview(words).cast("B"))
    assert sample.may_be_smaller_standalone(coded_bytes) is not is_searched


@given(st.integers(1, 1 << 20) | st.integers(3 * RANGE_ELEMENTS - 2, 4 * RANGE_ELEMENTS + 2))
def test_a_sample_lies_within_its_tensor_and_sees_nothing_twice(count: int) -> None:
    ranges = list(sampled_ranges(count))
    ends = [start + n for start, n in ranges]
    assert all(end <= start for end, (start, _) in zip([0, *ends], ranges, strict=False))
    assert ends[-1] <= count
    assert sum(n for _, n in ranges) == min(count, 3 * RANGE_ELEMENTS)


def test_an_estimate_looks_at_no_words_but_those_of_its_runs() -> None:
    tuned, base = fine_tune(DType.BF16, COUNT)
    kind = WORD_KINDS[DType.BF16]
    noise = np.random.default_rng(0).bytes(2 * COUNT)
    estimate = estimate_deltas(kind, tuned, base, [0, COUNT], COUNT // 4)
    assert estimate < COUNT // 2
    spoiled = tuned[: COUNT // 2] + noise[COUNT // 2 : COUNT] + tuned[COUNT : 3 * COUNT // 2]
    spoiled += noise[3 * COUNT // 2 :]
    assert estimate_deltas(kind, spoiled, base, [0, COUNT], COUNT // 4) == estimate
    for begins, n in [([], 64), ([0], 0), ([0], 65), ([2 * COUNT - 126], 64), ([0], 2 * COUNT)]:
        with pytest.raises(ValueError, match="multiple of 64 words"):
            estimate_deltas(kind, tuned, base, begins, n)
    with pytest.raises(ValueError, match="another size"):
        estimate_deltas(kind, tuned, base[:-2], [0], 64)


def test_a_base_that_does_not_fit_is_refused_before_anything_is_coded() -> None:
    tuned, base = fine_tune(DType.BF16, 1000)
    with pytest.raises(InvalidInput, match="base segments hold 2000 elements"):
        codec_of(DType.BF16, tuned, base + base)
    spec = TensorSpec(tensor_id(tuned), DType.BF16, 1, 1000)
    (part,) = split_frames(spec)
    with pytest.raises(InvalidInput, match="their plan or both are missing"):
        encode_frame(spec, part, tuned, base)
    with pytest.raises(InvalidInput, match="for 1000 elements"):
        encode_frame(spec, part, tuned[:-1])
