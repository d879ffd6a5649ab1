"""Casts between float types: as IEEE 754 rounds, with integers alone, and a NaN stays a NaN."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import CASTABLE, DType, InvalidInput, cast

# exponent bits, mantissa bits
FORMATS = {DType.F64: (11, 52), DType.F32: (8, 23), DType.F16: (5, 10), DType.BF16: (8, 7)}
floats = st.sampled_from(sorted(CASTABLE, key=lambda dtype: dtype.code))


def value_of(word: int, dtype: DType) -> Fraction | str:
    """The exact value of a non-negative word, or "inf" or "nan"."""
    exponent_bits, mantissa_bits = FORMATS[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = word >> mantissa_bits, word & ((1 << mantissa_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return "nan" if mantissa else "inf"
    if exponent > 0:
        mantissa |= 1 << mantissa_bits
    return Fraction(mantissa) * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)


def expected(word: int, source: DType, target: DType) -> int:
    """The rule of the format, in exact fractions: the nearest word, the even one of two."""
    sign, magnitude = divmod(word, 1 << (8 * source.itemsize - 1))
    exponent_bits, mantissa_bits = FORMATS[target]
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    value = value_of(magnitude, source)
    if value == "inf":
        result = infinity
    elif value == "nan":
        shift = mantissa_bits - FORMATS[source][1]
        payload = magnitude & ((1 << FORMATS[source][1]) - 1)
        moved = payload << shift if shift >= 0 else payload >> -shift
        result = infinity | moved | 1 << (mantissa_bits - 1)
    else:
        assert isinstance(value, Fraction)
        result = nearest(value, target, infinity)
    return sign << (8 * target.itemsize - 1) | result


def nearest(value: Fraction, target: DType, infinity: int) -> int:
    low, high = 0, infinity
    while high - low > 1:  # words of non-negative numbers are in the order of their values
        middle = (low + high) // 2
        finite = value_of(middle, target)
        assert isinstance(finite, Fraction)
        low, high = (middle, high) if finite <= value else (low, middle)
    below = value_of(low, target)
    assert isinstance(below, Fraction)
    # Beyond the largest number, infinity stands where the next one would be.
    above = value_of(high, target)
    if above == "inf":
        previous = value_of(low - 1, target)
        assert isinstance(previous, Fraction)
        above = below + (below - previous)
    assert isinstance(above, Fraction)
    if value - below != above - value:
        return low if value - below < above - value else high
    return low if low % 2 == 0 else high


def cast_word(word: int, source: DType, target: DType) -> int:
    out = bytearray(target.itemsize)
    cast(word.to_bytes(source.itemsize, "little"), source, target, memoryview(out))
    return int.from_bytes(out, "little")


@given(data=st.data(), source=floats, target=floats)
def test_any_word_is_rounded_to_the_nearest_even(
    data: st.DataObject, source: DType, target: DType
) -> None:
    word = data.draw(st.integers(0, (1 << 8 * source.itemsize) - 1))
    if source != target:
        assert cast_word(word, source, target) == expected(word, source, target)
    else:
        assert cast_word(word, source, target) == word


@given(data=st.data(), source=floats, target=floats)
def test_words_at_ties_and_beside_them_are_rounded_alike(
    data: st.DataObject, source: DType, target: DType
) -> None:
    # A word of the target, widened, plus half a unit and its neighbours: where rounding decides.
    dropped = FORMATS[source][1] - FORMATS[target][1]
    if source == target or dropped < 1:
        return
    exponent = data.draw(st.integers(0, (1 << FORMATS[source][0]) - 1))
    kept = data.draw(st.integers(0, (1 << FORMATS[target][1]) - 1))
    near = data.draw(st.integers(-1, 1)) + (1 << (dropped - 1))
    word = (exponent << FORMATS[source][1]) + (kept << dropped) + near
    assert cast_word(word, source, target) == expected(word, source, target)


@pytest.mark.parametrize("source", [DType.F16, DType.BF16])
@pytest.mark.parametrize("target", sorted(CASTABLE, key=lambda dtype: dtype.code))
def test_every_16_bit_word_that_is_widened_comes_back(source: DType, target: DType) -> None:
    if FORMATS[target] < FORMATS[source] or target.itemsize == 2:
        return
    words = np.arange(1 << 16, dtype="<u2")
    wide = bytearray((1 << 16) * target.itemsize)
    back = bytearray(1 << 17)
    cast(words.tobytes(), source, target, memoryview(wide))
    cast(wide, target, source, memoryview(back))
    exponent_bits, mantissa_bits = FORMATS[source]
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    is_nan = (words & 0x7FFF) > infinity
    quiet = np.where(is_nan, words | (1 << (mantissa_bits - 1)), words)
    assert np.array_equal(np.frombuffer(back, "<u2"), quiet)


def test_a_long_cast_equals_one_of_single_words() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 150_000, dtype=np.uint32)
    for target in (DType.BF16, DType.F16):
        out = bytearray(2 * len(words))
        cast(words.astype("<u4").tobytes(), DType.F32, target, memoryview(out))
        result = np.frombuffer(out, "<u2")
        for i in (0, 65535, 65536, 149_999):
            assert result[i] == cast_word(int(words[i]), DType.F32, target)


@pytest.mark.parametrize(("source", "target"), [(DType.I32, DType.F32), (DType.F32, DType.F8_E4M3)])
def test_other_types_are_not_cast(source: DType, target: DType) -> None:
    with pytest.raises(InvalidInput):
        cast(bytes(4), source, target, memoryview(bytearray(4)))


def test_a_cast_needs_room_for_exactly_its_elements() -> None:
    with pytest.raises(InvalidInput):
        cast(bytes(8), DType.F32, DType.F16, memoryview(bytearray(6)))
