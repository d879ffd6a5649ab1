"""A predicted word is the exact sum, rounded once: compared with fractions and NumPy."""

from bisect import bisect_left
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import DType
from deltahub.codecs._native import FmDeltaEncoder
from deltahub.codecs.fm_delta.low_rank.prediction import LowRank, predict
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.reference.prediction import GUARD_BITS, predicted, product
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs.kernels import delta_outcome, every_kernel, running

DTYPES = [DType.BF16, DType.F16, DType.F32]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def value(words: Words, magnitude: int) -> Fraction:
    """The value of a word without its sign, in units of the least denormal; Inf as if finite.

    It grows with the word, so words of one sign are in the order of their values.
    """
    exponent, mantissa = divmod(magnitude, 1 << words.mantissa_bits)
    if exponent == 0:
        return Fraction(mantissa)
    return Fraction((mantissa + (1 << words.mantissa_bits)) << (exponent - 1))


def nearest(words: Words, exact: Fraction) -> int:
    """The magnitude of the word nearest to `exact` >= 0; ties to even; Inf if it is too large."""
    infinite = words.max_exponent << words.mantissa_bits
    above = bisect_left(range(infinite), exact, key=lambda magnitude: value(words, magnitude))
    if above == 0:
        return 0
    over, under = value(words, above) - exact, exact - value(words, above - 1)
    if over == under:
        return above - above % 2
    return above if over < under else above - 1


def expected(words: Words, base: int, step: int, c0: int) -> int:
    """The rule of the format: addends are truncated to the common unit, their sum is rounded."""
    if words.exponent(base) == words.max_exponent:
        return base
    common = max(words.exponent(base), 1, c0)
    unit = Fraction(2) ** (common - 1 - GUARD_BITS[words])
    steps = step // 2 ** min(common - c0, 31)
    steps = min(max(steps, -(1 << 30)), (1 << 30) - 1)
    if steps == 0:
        return base
    base_units = value(words, base % words.sign) // unit
    exact = (-base_units if base & words.sign else base_units) + steps
    if exact == 0:
        quarter, least_normal = unit / 4, 1 << words.mantissa_bits
        is_normal = quarter >= value(words, least_normal)
        return base & words.sign | (nearest(words, quarter) if is_normal else 0)
    rounded = nearest(words, abs(exact) * unit)
    if rounded == words.max_exponent << words.mantissa_bits:
        return base
    return rounded | (words.sign if exact < 0 else 0)


steps = (
    st.integers(-(1 << 31), (1 << 31) - 1)
    | st.integers(-300, 300)
    | st.builds(lambda bit, sign: sign << bit, st.integers(0, 30), st.sampled_from([-1, 1]))
)


@every_dtype
@settings(max_examples=150)
@given(data=st.data(), step=steps)
def test_a_word_is_the_sum_rounded(dtype: DType, data: st.DataObject, step: int) -> None:
    words = Words.of(dtype)
    exponent = data.draw(st.integers(0, words.max_exponent))
    all_ones = (1 << words.mantissa_bits) - 1
    mantissa = data.draw(st.sampled_from([0, 1, all_ones - 1, all_ones]) | st.integers(0, all_ones))
    near = st.integers(max(exponent - 3, 1), max(min(exponent + 3, words.max_exponent - 1), 1))
    c0 = data.draw(near | st.integers(1, words.max_exponent - 1))
    base = exponent << words.mantissa_bits | mantissa
    for word in (base, base | words.sign):
        assert predicted(words, word, step, c0) == expected(words, word, step, c0)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32], ids=lambda dtype: dtype.name)
def test_a_word_is_what_numpy_rounds_a_double_to(dtype: DType) -> None:
    words, guard = Words.of(dtype), GUARD_BITS[Words.of(dtype)]
    random = np.random.default_rng(1)
    floats = np.dtype(f"<f{dtype.itemsize}")

    def as_float(word: int) -> Any:
        return np.array([word], f"<u{dtype.itemsize}").view(floats)[0]

    least = np.float64(as_float(1))
    for c0 in (1, 2, 3, 14, words.max_exponent // 2, words.max_exponent - 2):
        # Bases from the unit's exponent on, so that only the step is truncated.
        exponents = np.clip(c0 + random.integers(0, 4, 300), 1, words.max_exponent - 1)
        mantissas = random.integers(0, 1 << words.mantissa_bits, 300)
        signs = random.integers(0, 2, 300) * words.sign
        bases = exponents << words.mantissa_bits | mantissas | signs
        steps = random.integers(-(1 << 26), 1 << 26, 300)
        for base, step in zip(bases.tolist(), steps.tolist(), strict=True):
            drop = max(words.exponent(base) - c0, 0)
            start = as_float(base)
            exact = np.float64(start) + (step >> drop << drop) * least * 2.0 ** (c0 - 1 - guard)
            with np.errstate(over="ignore"):
                rounded = exact.astype(floats)
            got = np.array([predicted(words, base, step, c0)], f"<u{dtype.itemsize}").view(floats)[
                0
            ]
            assert got == (rounded if np.isfinite(rounded) else start)


@every_dtype
def test_special_bases(dtype: DType) -> None:
    words, guard = Words.of(dtype), GUARD_BITS[Words.of(dtype)]
    infinite = words.max_exponent << words.mantissa_bits
    one = 1 << guard  # one last place
    c0 = words.max_exponent // 2
    number = c0 << words.mantissa_bits
    for word in (infinite, infinite | words.sign, infinite + 1, words.sign - 1):
        assert predicted(words, word, 5 * one, c0) == word
    assert predicted(words, number, 0, c0) == number
    assert predicted(words, number, one, c0) == number + 1
    # Ties go to the even neighbour.
    assert predicted(words, number, one // 2, c0) == number
    assert predicted(words, number, one // 2 + 1, c0) == number + 1
    assert predicted(words, number + 1, one // 2, c0) == number + 2
    assert predicted(words, number + 1, -one // 2, c0) == number
    # Sums of 0: the base's sign, and a quarter of the unit if that is a normal number.
    whole = 1 << (guard + words.mantissa_bits)
    for e in (1, 2, c0, words.max_exponent - 1):
        left = max(e - guard - words.mantissa_bits - 2, 0) << words.mantissa_bits
        word = e << words.mantissa_bits
        assert predicted(words, word, -whole, e) == left
        assert predicted(words, word | words.sign, whole, e) == words.sign | left
    # Across zero, and from zero to the smallest number.
    assert predicted(words, 1, -2 * one, 1) == words.sign | 1
    assert predicted(words, 0, one, 1) == 1
    assert predicted(words, words.sign, one, 1) == 1
    # A sum that rounds to 0 keeps its sign. Half of the smallest number is a tie, and 0 is even.
    assert predicted(words, words.sign, one // 2, 1) == 0
    assert predicted(words, 0, -(one // 2), 1) == words.sign
    # From denormals to normal numbers.
    assert predicted(words, (1 << words.mantissa_bits) - 1, one, 1) == 1 << words.mantissa_bits
    # Above the largest number the result is the base.
    assert predicted(words, infinite - 1, one, words.max_exponent - 1) == infinite - 1
    assert predicted(words, infinite - 1, one // 2 - 1, words.max_exponent - 1) == infinite - 1
    assert predicted(words, infinite - 2, one, words.max_exponent - 1) == infinite - 1
    assert predicted(words, infinite - 2, 1 << 30, words.max_exponent - 1) == infinite - 2
    assert predicted(words, 0, (1 << 31) - 1, words.max_exponent - 1) == 0


@settings(max_examples=100)
@given(
    pairs=st.lists(
        st.tuples(st.integers(-32768, 32767), st.integers(-32768, 32767)), min_size=1, max_size=64
    )
)
def test_products_wrap_around_at_32_bits(pairs: list[tuple[int, int]]) -> None:
    left, right = np.array(pairs).astype(np.uint32).T
    wrapped = int((left * right).sum(dtype=np.uint32).view(np.int32))
    assert product([a for a, _ in pairs], [b for _, b in pairs]) == wrapped


def test_the_largest_products_wrap() -> None:
    assert product([-32768] * 2, [-32768] * 2) == -(1 << 31)
    assert product([-32768] * 4, [-32768] * 4) == 0


@every_kernel
@every_dtype
def test_a_product_that_takes_all_of_a_word_is_read_alike(dtype: DType, kernels: str) -> None:
    """Column j has words of exponent c0 - j, and a product in it whose sum with them is 0."""
    words = Words.of(dtype)
    digits = words.mantissa_bits + GUARD_BITS[words]
    shape = BlockShape(64, 16)
    column = np.arange(shape.columns)
    right = (-(1 << 15 >> column)).astype("<i2")[None]
    signs = np.arange(shape.rows) % 2
    left = ((1 - 2 * signs) << (digits - 15)).astype("<i2")[:, None]
    for c0 in (1, 2, 15, digits + 1, digits + 2, digits + 3, words.max_exponent - 1):
        if c0 >= words.max_exponent:
            continue
        row = np.maximum(c0 - column, 0) << words.mantissa_bits
        base = (row | signs[:, None] * words.sign).astype(f"<u{dtype.itemsize}")
        source = predict(dtype, base, LowRank(left, right, c0)) ^ (column % 3 == 1)
        pair = source.tobytes(), base.tobytes()
        kind, frame = WORD_KINDS[dtype], (shape.rows, shape.columns)
        factors = left.tobytes(), right.tobytes()
        with running(kernels):
            encoder = FmDeltaEncoder(kind, *pair, *frame, 3, *factors, c0, False)
            stream = encoder.encode(*pair, 0, 0, *frame)
        assert delta_outcome(dtype, frame, encoder.prelude, stream, pair[1], shape) == pair[0]
