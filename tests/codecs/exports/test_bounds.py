"""How far a rounded weight lies from the one that was exported: the bounds of the format's page."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import DType
from deltahub.codecs.exports.coding import MANTISSA_BITS, Coding, coding, lossless
from support.codecs.deltas import fine_tune
from support.codecs.exports import LARGEST, ROUNDED, coded, finite
from support.codecs.masked import values_of

rounded = pytest.mark.parametrize("dtype", ROUNDED, ids=lambda dtype: dtype.name)
SHORT = [DType.F16, DType.BF16]
short = pytest.mark.parametrize("dtype", SHORT, ids=lambda dtype: dtype.name)
# 2^this is the smallest normal number.
LEAST_EXPONENT = {DType.F32: -126, DType.F16: -14, DType.BF16: -126}


def any_words(dtype: DType, data: st.DataObject, count: int) -> bytes:
    """Finite words of any size, and some of one size: the others of a block are near zero."""
    sign = 1 << (8 * dtype.itemsize - 1)
    m = MANTISSA_BITS[dtype]
    near = st.integers(LARGEST[dtype] // 2, LARGEST[dtype] // 2 + (2 << m))
    small = st.integers(0, 4 << m)
    top = st.integers(LARGEST[dtype] - (1 << m), LARGEST[dtype])
    words = near | small | top | st.integers(0, LARGEST[dtype])
    drawn = data.draw(st.lists(words, min_size=count, max_size=count))
    signs = data.draw(st.lists(st.sampled_from([0, sign]), min_size=count, max_size=count))
    return (np.array(drawn) | np.array(signs)).astype(f"<u{dtype.itemsize}").tobytes()


def relative_bound(how: Coding, level: int) -> Fraction:
    """Of normal numbers that are not cut to the largest one: section 3 of the page derives it."""
    most, kept, n_values = MANTISSA_BITS[how.dtype], how.bits, 1 << (how.bits - level)
    if level == kept:
        bound = Fraction(0 if kept == most else 1, (2 << kept) + 1)
    elif kept == most:
        bound = Fraction(1, 2 << level)
    else:
        first = Fraction(2 * n_values - 1, (4 << kept) - 1)
        last = Fraction(n_values, (2 << kept) + 2 * n_values - 1)
        bound = max(first, last)
    return with_block(how, bound)


def with_block(how: Coding, bound: Fraction) -> Fraction:
    if not how.block:
        return bound
    return (1 + bound) * (1 + Fraction(1, 2 << MANTISSA_BITS[how.dtype])) - 1


def absolute_bound(how: Coding, level: int) -> Fraction:
    """Of numbers that are subnormal, or become so when they are divided."""
    unit = Fraction(2) ** LEAST_EXPONENT[how.dtype]
    most = MANTISSA_BITS[how.dtype]
    if level == how.bits:
        bound = unit / (2 << level) if how.bits < most else Fraction(0)
    else:
        bound = unit / (1 << level)
    return bound if not how.block else 2 * bound + unit / (2 << most)


def assert_within_bounds(how: Coding, words: bytes, level: int) -> None:
    dtype = how.dtype
    values, made = values_of(dtype, words), values_of(dtype, coded(how, words, level))
    assert np.array_equal(np.signbit(values), np.signbit(made))
    smallest = Fraction(2) ** (LEAST_EXPONENT[dtype] + (1 if how.block else 0))
    (largest,) = values_of(dtype, _largest(how))
    for x, y in zip(map(Fraction, values.tolist()), map(Fraction, made.tolist()), strict=True):
        error = abs(y - x)
        if abs(x) < smallest:
            assert error <= absolute_bound(how, level)
        elif abs(x) > Fraction(largest) and level == how.bits:
            assert error < abs(x) * with_block(how, Fraction(1, 2 << level))
        else:
            assert error <= abs(x) * relative_bound(how, level)
        assert error <= abs(x) * with_block(how, Fraction(1, 2 << level)) or abs(x) < smallest


def _largest(how: Coding) -> bytes:
    """The largest number of `how.bits` mantissa bits."""
    unused = MANTISSA_BITS[how.dtype] - how.bits
    word = LARGEST[how.dtype] >> unused << unused
    return word.to_bytes(how.dtype.itemsize, "little")


@rounded
@settings(max_examples=200)
@given(data=st.data())
def test_no_element_lies_further_away_than_the_page_says(dtype: DType, data: st.DataObject) -> None:
    most = MANTISSA_BITS[dtype]
    kept = data.draw(st.integers(0, most))
    block = data.draw(st.sampled_from([0, 8])) if kept < most else 0
    level = data.draw(st.integers(0, kept))
    how = coding(dtype, kept, block, [level])
    assert_within_bounds(how, any_words(dtype, data, data.draw(st.integers(1, 20))), level)


@short
@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_every_finite_word_lies_within_the_bounds(dtype: DType, kept: int) -> None:
    """Without blocks; the words around a few powers of two, and those at both ends."""
    words = np.frombuffer(finite(dtype), "<u2")
    m = MANTISSA_BITS[dtype]
    fields = (words & 0x7FFF) >> m
    ends = {0, 1, 2, 15, LARGEST[dtype] >> m}
    some = words[np.isin(fields, [*ends])].tobytes()
    for level in (0, kept):
        assert_within_bounds(coding(dtype, kept, 0, [level]), some, level)


@short
@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_the_bound_is_reached_in_the_middle_between_two_numbers(dtype: DType, kept: int) -> None:
    m = MANTISSA_BITS[dtype]
    one = values_of(dtype, ((LARGEST[dtype] >> m + 1) << m).to_bytes(2, "little"))[0]
    middle = ((LARGEST[dtype] >> m + 1) << m) + (1 << (m - kept - 1))
    words = middle.to_bytes(2, "little")
    made = values_of(dtype, coded(coding(dtype, kept, 0), words))[0]
    value = values_of(dtype, words)[0]
    # The even significand of two: of no mantissa bits, 1 and 2, the second.
    assert made == (one if kept else 2 * one)
    assert abs(Fraction(value - made)) / Fraction(value) == Fraction(1, (2 << kept) + 1)


@short
def test_a_word_of_few_mantissa_bits_is_rounded_to_itself(dtype: DType) -> None:
    words = finite(dtype)
    for kept in range(MANTISSA_BITS[dtype]):
        how = coding(dtype, kept, 0)
        once = coded(how, words)
        assert coded(how, once) == once


@short
def test_more_mantissa_bits_never_lie_further_away(dtype: DType) -> None:
    words = finite(dtype)
    values = values_of(dtype, words)
    before = np.full(len(values), np.inf)
    for kept in range(MANTISSA_BITS[dtype] + 1):
        errors = np.abs(values_of(dtype, coded(coding(dtype, kept, 0), words)) - values)
        assert np.all(errors <= before)
        before = errors
    assert not before.any()


@short
def test_no_word_becomes_infinite_and_none_loses_its_sign(dtype: DType) -> None:
    words = finite(dtype)
    top = np.frombuffer(words, "<u2") >> 15
    for kept in range(MANTISSA_BITS[dtype]):
        for block in (0, 8):
            for level in {0, kept}:
                made = np.frombuffer(coded(coding(dtype, kept, block, [0]), words, level), "<u2")
                assert np.all(made & 0x7FFF <= LARGEST[dtype])
                assert np.array_equal(made >> 15, top)
        largest = LARGEST[dtype].to_bytes(2, "little")
        assert coded(coding(dtype, kept, 0), largest) == _largest(coding(dtype, kept, 0))


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_the_largest_element_of_a_block_of_bf16_stays_as_it_is(kept: int) -> None:
    random = np.random.default_rng(kept)
    words = np.frombuffer(finite(DType.BF16), "<u2").copy()
    random.shuffle(words)
    for block in (8, 512):
        made = np.frombuffer(coded(coding(DType.BF16, kept, block), words.tobytes()), "<u2")
        for at in range(0, len(words), block):
            magnitudes = words[at : at + block] & 0x7FFF
            largest = int(np.argmax(magnitudes))
            if magnitudes[largest] >> MANTISSA_BITS[DType.BF16]:
                assert made[at + largest] == words[at + largest]


@rounded
def test_zeros_keep_their_signs_at_every_level(dtype: DType) -> None:
    """An all-zero block has the scale 0; and no reader fills bits into a zero."""
    sign = 1 << (8 * dtype.itemsize - 1)
    zeros = np.array([0, sign] * 20, f"<u{dtype.itemsize}").tobytes()
    others = fine_tune(dtype, 24)[0]
    for block in (0, 8):
        for words in (zeros, zeros + others):
            for level in (0, 1, 3):
                made = coded(coding(dtype, 3, block, [0, 1]), words, level)
                assert made[: len(zeros)] == zeros
    for level in (0, 1, MANTISSA_BITS[dtype]):
        assert coded(lossless(dtype, [0, 1]), zeros, level) == zeros


@rounded
def test_subnormal_words_are_rounded_to_the_same_unit(dtype: DType) -> None:
    """A unit of k bits below the smallest normal number is that of the numbers above it."""
    m, kept = MANTISSA_BITS[dtype], 3
    words = np.arange(1 << min(m, 12)) << max(m - 12, 0)
    unit = 1 << (m - kept)
    expected = np.rint(words / unit).astype(np.int64) * unit  # ties to even
    made = coded(coding(dtype, kept, 0), words.astype(f"<u{dtype.itemsize}").tobytes())
    assert made == expected.astype(f"<u{dtype.itemsize}").tobytes()
