"""Every set of kernels predicts words as the format says, near every limit."""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest

from deltahub.codecs import _native as native
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, predict
from deltahub.codecs.reference.fm_delta import BlockShape
from deltahub.codecs.words import WORD_KINDS
from support.codecs.kernels import NAMES, run_delta, running
from support.codecs.processor_modes import MODES, in_mode

every_dtype = pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)


def coded(name: str, dtype: DType, words: tuple[bytes, bytes], fit: LowRank) -> tuple[bytes, bytes]:
    """(prelude, stream) of one block, from the named kernels. words: of the tensor, of the base."""
    rows, columns = len(fit.left), fit.right.shape[1]
    with running(name):
        encoder = native.FmDeltaEncoder(
            WORD_KINDS[dtype], *words, rows, columns, 2,
            fit.left.tobytes(), fit.right.tobytes(), fit.floor, fit.is_rounded,
        )  # fmt: skip
        return encoder.prelude, encoder.encode(*words, 0, 0, rows, columns)


@every_dtype
@pytest.mark.parametrize("seed", range(4))
def test_words_near_every_limit_are_predicted_as_stated(dtype: DType, seed: int) -> None:
    """Each row has exponents around one value and products of one size, from zero to the limits."""
    rows, columns = 96, 160
    random = np.random.default_rng(seed)
    words = FLOAT_WORDS[dtype]
    most, m = words.max_exponent, words.mantissa_bits
    floor = [1, words.bias - 6, words.bias, most - 1][seed]
    about = np.clip(floor + random.integers(-28, 29, (rows, 1)), 1, most - 1)
    exponents = np.clip(about + random.integers(-3, 4, (rows, columns)), 1, most - 1)
    digits = random.integers(0, 1 << (m + 1), (rows, columns))
    base = ((digits >> m) * words.sign | exponents << m | digits & ((1 << m) - 1)).astype(
        f"<u{dtype.itemsize}"
    )
    left = np.left_shift(1, random.integers(0, 16, (rows, 1))).astype(np.uint16).view(np.int16)
    size = np.left_shift(1, random.integers(0, 16, columns))
    right = (random.integers(0, 1 << 16, columns) % (2 * size) - size).astype(np.int16)
    for is_rounded in (False, True):
        fit = LowRank(left, right.reshape(1, columns), floor, is_rounded)
        both = predict(dtype, base, fit).tobytes(), base.tobytes()
        ((prelude, stream),) = {coded(name, dtype, both, fit) for name in NAMES}
        assert len(stream) < rows * columns // 32  # all deltas are zero
        for name in NAMES:
            shape = BlockShape(rows, columns)
            assert (
                run_delta(name, dtype, (rows, columns), prelude, stream, both[1], shape) == both[0]
            )


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("length", range(22, 30))
def test_a_sum_is_rounded_once_however_large_it_is(dtype: DType, length: int) -> None:
    """A sum one unit above the middle between two words; a float may not have that unit."""
    float_words = FLOAT_WORDS[dtype]
    m, guard, floor = float_words.mantissa_bits, float_words.guard_bits, float_words.bias
    half = 1 << (length - m - 2)
    wanted = (1 << (length - 1)) + half + 1
    rows, columns = 2, 32
    base = np.full((rows, columns), floor << m, f"<u{dtype.itemsize}")
    steps, rest = divmod(wanted - (1 << (m + guard)), 1 << 14)
    left = np.array([[1 << 14, 1]] * rows, np.int16)
    right = np.array([[steps] * columns, [rest] * columns], np.int16)
    moved = (floor + length - 1 - m - guard) << m | 1  # rounded up, although the mantissa is even
    words = np.full_like(base, moved)
    fit = LowRank(left, right, floor)
    assert np.array_equal(predict(dtype, base, fit), words)
    both = words.tobytes(), base.tobytes()
    for writer, reader in product(NAMES, NAMES):
        prelude, stream = coded(writer, dtype, both, fit)
        shape, frame = BlockShape(rows, columns), (rows, columns)
        assert run_delta(reader, dtype, frame, prelude, stream, both[1], shape) == both[0]


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("length", [1, 6, 13, 20, 22, 23, 24, 25, 27, 28])
def test_every_word_is_moved_alike_by_products_of_any_length(dtype: DType, length: int) -> None:
    """All words in order, so that neighbours have one exponent; products of `length` bits."""
    random = np.random.default_rng(length)
    side = 1 << 8
    base = np.arange(1 << 16, dtype="<u2").reshape(side, side)
    left = random.choice([-1, 1], (side, 1)) << max(length - 12, 0)
    right = random.choice([-1, 1], (1, side)) * random.integers(
        1 << min(length, 12) >> 1, 1 << min(length, 12), (1, side)
    )
    most = FLOAT_WORDS[dtype].max_exponent
    middle = FLOAT_WORDS[dtype].bias
    for floor in (1, 2, 5, middle - 10, middle, middle + 3, most - 12, most - 1):
        fit = LowRank(left.astype(np.int16), right.astype(np.int16), floor)
        both = predict(dtype, base, fit).tobytes(), base.tobytes()
        prelude, stream = coded("portable", dtype, both, fit)
        frame, shape = (side, side), BlockShape(side, side)
        for name in NAMES:
            found = run_delta(name, dtype, frame, prelude, stream, both[1], shape)
            assert found == both[0], (name, floor)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("length", range(22, 31))
@pytest.mark.parametrize("above", [0, 1, 3])
def test_sums_next_to_a_half_are_rounded_as_stated(dtype: DType, length: int, above: int) -> None:
    """Sums of `length` bits, a few units below and above the middle between two words.

    above: how far the exponents of the words exceed that of the unit; each step drops one bit.
    """
    words = FLOAT_WORDS[dtype]
    m, guard, floor = words.mantissa_bits, words.guard_bits, words.bias
    random = np.random.default_rng(length)
    rows, columns = 6, 320
    signs = np.array([0, words.sign] * (rows // 2))[:, None]
    fraction = random.integers(0, 1 << m, columns)
    base = (signs | (floor + above) << m | fraction).astype(f"<u{dtype.itemsize}")
    size = (1 << m | fraction) << guard
    drop = length - m - 1
    kept = random.integers(1 << m, 1 << (m + 1), columns)
    sums = (kept << drop) + (1 << drop >> 1) + random.integers(-6, 7, columns)
    # Positive words are moved to these sums, negative words to their negatives.
    wanted = np.clip((sums - size) << above, 2 - (1 << 30), (1 << 30) - 2)
    steps, rest = np.divmod(wanted, 1 << 14)
    parts = [(steps + part) // 4 for part in range(4)]
    right = np.array([*parts, rest], np.int16)
    left = np.array([[1 << 14] * 4 + [1], [-(1 << 14)] * 4 + [-1]] * (rows // 2), np.int16)
    for is_rounded in (False, True):
        fit = LowRank(left, right, floor, is_rounded)
        both = predict(dtype, base, fit).tobytes(), base.tobytes()
        for name in NAMES:
            prelude, stream = coded(name, dtype, both, fit)
            frame, shape = (rows, columns), BlockShape(rows, columns)
            for mode in (None, *MODES):
                with nullcontext() if mode is None else in_mode(mode):
                    found = run_delta(name, dtype, frame, prelude, stream, both[1], shape)
                assert found == both[0], (name, mode)
            assert len(stream) < rows * columns // 2, name  # nearly all deltas are zero


@every_dtype
def test_products_at_the_limits_of_an_integer_are_added_alike(dtype: DType) -> None:
    """Products on both sides of the clamp, for words to which floats could add them exactly."""
    words = FLOAT_WORDS[dtype]
    m, guard, floor = words.mantissa_bits, words.guard_bits, words.bias
    limits = [(1 << digits) + step for digits in (22, 23, 24, 28, 29, 30) for step in (-1, 0, 1)]
    wanted = np.array([*limits, 2**31 - 1] + [-limit for limit in limits] + [-(2**31)])
    columns = 4 * len(wanted)
    steps, rest = np.divmod(np.tile(wanted, 4), 1 << 14)
    parts = [(steps + part) // 5 for part in range(5)]  # a fifth each, so that all fit into 16 bits
    right = np.array([*parts, rest], np.int16)
    rows = 8
    left = np.array([[1 << 14] * 5 + [1]] * rows, np.int16)
    exponents = np.repeat([floor, floor - 1, floor - guard // 2, floor - guard], columns // 4)
    fractions = np.random.default_rng(0).integers(0, 1 << m, (rows, columns))
    signs = np.array([0, words.sign] * (rows // 2))[:, None]
    base = (signs | exponents << m | fractions).astype(f"<u{dtype.itemsize}")
    fit = LowRank(left, right, floor)
    assert np.array_equal(
        left.astype(np.int64) @ right.astype(np.int64), [np.tile(wanted, 4)] * rows
    )
    both = predict(dtype, base, fit).tobytes(), base.tobytes()
    for name in NAMES:
        prelude, stream = coded(name, dtype, both, fit)
        frame, shape = (rows, columns), BlockShape(rows, columns)
        assert run_delta(name, dtype, frame, prelude, stream, both[1], shape) == both[0]
        assert len(stream) < rows * columns // 2, name  # beside the factors, nearly nothing
