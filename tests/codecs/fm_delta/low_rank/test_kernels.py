"""The native kernels of the search for low rank agree with low_rank_statement in NumPy."""

from itertools import product

import numpy as np
import pytest

from deltahub.codecs import _native as native
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs import low_rank_statement as statement
from support.codecs.deltas import scaled_fine_tune, special_words
from support.codecs.kernels import NAMES, every_kernel, running
from support.codecs.low_rank_statement import Rule

every_dtype = pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)


def trained(dtype: DType, rows: int, columns: int) -> tuple[Words, Words]:
    """Words of a fine-tune and of its base."""
    unsigned = f"<u{dtype.itemsize}"
    both = scaled_fine_tune(dtype, rows, columns)
    words, base = (np.frombuffer(each, unsigned).reshape(rows, columns) for each in both)
    return words, base


def odd(dtype: DType) -> tuple[Words, Words]:
    """Every pair of special words, in rows that are not contiguous."""
    special = special_words(dtype)
    words, base = np.meshgrid(special, special, indexing="ij")
    return np.repeat(words, 2, axis=0)[::2], np.repeat(base, 2, axis=0)[::2]


def pairs_of(dtype: DType) -> list[tuple[Words, Words]]:
    shapes = ((1, 1), (3, 7), (5, 33), (70, 131))
    return [*(trained(dtype, *shape) for shape in shapes), odd(dtype)]


def factors(dtype: DType, rows: int, columns: int, rank: int) -> tuple[LowRank, LowRank]:
    """Factors whose products are about as large as weights: unrounded and rounded products."""
    random = np.random.default_rng(rank)
    left = np.rint(random.standard_normal((rows, rank)) * 90).astype(np.int16)
    right = np.rint(random.standard_normal((rank, columns)) * 90).astype(np.int16)
    floor = FLOAT_WORDS[dtype].bias - 8
    return LowRank(left, right, floor), LowRank(left, right, floor, is_rounded=True)


@every_kernel
@every_dtype
@pytest.mark.parametrize("rank", [0, 1, 4, 7])
def test_a_trial_counts_what_is_left_of_a_prediction(kernels: str, dtype: DType, rank: int) -> None:
    for words, base in pairs_of(dtype):
        for low_rank in factors(dtype, *words.shape, rank):
            with running(kernels):
                bits = native.estimated_bits(
                    WORD_KINDS[dtype],
                    words,
                    base,
                    low_rank.left,
                    low_rank.right,
                    low_rank.floor,
                    low_rank.is_rounded,
                )
            expected = statement.estimated_bits(dtype, words, base, low_rank)
            # A row whose mean is between two classes may be in either. The native kernel limits
            # exponents to 60 around the middle one, which changes the classes of odd words.
            is_odd = FLOAT_WORDS[dtype].max_exponent in FLOAT_WORDS[dtype].exponents(words)
            assert bits == pytest.approx(expected, rel=0.2 if is_odd else 0.001)


def test_factors_are_counted_without_the_digits_that_they_lack() -> None:
    left = factors(DType.BF16, 300, 1, 5)[0].left
    assert native.factor_bits(left) == pytest.approx(statement.factor_bits(left))
    assert native.factor_bits(left << 4) == pytest.approx(statement.factor_bits(left))
    assert native.factor_bits(left[:0]) == 0


@every_kernel
@every_dtype
@pytest.mark.parametrize("rule", [Rule(3), Rule(7), Rule(8, 0.1, 0.05)])
def test_words_ask_of_products_what_the_rule_says(kernels: str, dtype: DType, rule: Rule) -> None:
    real = np.float64 if dtype is DType.F32 else np.float32
    random = np.random.default_rng(0)
    typical = FLOAT_WORDS[dtype].bias - 5
    for (words, base), is_rounded in product(pairs_of(dtype), (False, True)):
        products = (random.standard_normal(words.shape) * 2e-4).astype(real)
        weights, residuals = np.empty((2, *words.shape), np.float32)
        with running(kernels):
            native.weighted_residuals(
                WORD_KINDS[dtype],
                words,
                base,
                products,
                typical,
                rule.octaves,
                rule.margin,
                rule.satisfied_weight,
                is_rounded,
                weights,
                residuals,
            )
        with np.errstate(over="ignore", invalid="ignore"):
            expected = statement.weighted_residuals(
                dtype, words, base, products, typical, rule, is_rounded
            )
        np.testing.assert_allclose(weights, expected[0], rtol=1e-6)
        np.testing.assert_allclose(residuals, expected[1], rtol=1e-5, atol=1e-9)


@every_kernel
@every_dtype
@pytest.mark.parametrize("rank", [1, 8, 19])
@pytest.mark.parametrize("rule", [Rule(2), Rule(8, 0.1, 0.05)])
def test_a_factor_moves_to_what_words_ask(
    kernels: str, dtype: DType, rule: Rule, rank: int
) -> None:
    """For any strides: rows, columns and every third column."""
    real = np.float64 if dtype is DType.F32 else np.float32
    random = np.random.default_rng(rank)
    words, base = trained(dtype, 70, 331)
    typical = FLOAT_WORDS[dtype].bias - 5
    ruled = typical, rule.octaves, rule.margin, rule.satisfied_weight, False
    transposed = np.ascontiguousarray(words.T).T, np.ascontiguousarray(base.T).T
    for both in ((words, base), transposed, (words[:, ::3], base[:, ::3])):
        n_systems, n = both[0].shape
        own = (random.standard_normal((n_systems, rank)) * 1e-4).astype(real)
        given = random.standard_normal((rank, n)).astype(real)
        moves = np.empty((n_systems, rank))
        with running(kernels):
            native.least_squares_step(WORD_KINDS[dtype], *both, own, given, *ruled, moves)
        expected = statement.least_squares_step(dtype, *both, own, given, typical, rule)
        np.testing.assert_allclose(moves, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


def test_a_factor_moves_alike_whatever_the_kernels() -> None:
    words, base = trained(DType.BF16, 70, 331)
    random = np.random.default_rng(0)
    given = random.standard_normal((20, 331)).astype(np.float32)
    found = set()
    for name in NAMES:
        moves = np.empty((70, 20))
        with running(name):
            native.least_squares_step(
                WORD_KINDS[DType.BF16], words, base, np.zeros((70, 20), np.float32), given,
                FLOAT_WORDS[DType.BF16].bias - 5, 8, 0.1, 0.05, True, moves,
            )  # fmt: skip
        found.add(moves.tobytes())
    assert len(found) == 1


def test_what_does_not_fit_is_refused() -> None:
    words, base = trained(DType.BF16, 4, 9)
    kind = WORD_KINDS[DType.BF16]
    own, given = np.zeros((4, 2), np.float32), np.zeros((2, 9), np.float32)
    moves = np.zeros((4, 2))
    with pytest.raises(ValueError, match="shapes differ"):
        native.least_squares_step(
            kind, words[:3], base[:3], own, given, 9, 2, None, 0, False, moves
        )
    left, right = np.zeros((4, 2), np.int16), np.zeros((2, 9), np.int16)
    with pytest.raises(ValueError, match="another shape"):
        native.estimated_bits(kind, words, base, left, right[:1], 120, False)
    with pytest.raises(ValueError, match="no exponent"):
        native.estimated_bits(kind, words, base, left, right, 255, False)
    with pytest.raises(ValueError, match="contiguous"):
        native.estimated_bits(kind, words[:, ::2], base[:, ::2], left, right[:, ::2], 120, False)
    with pytest.raises(ValueError, match="another size"):
        native.estimated_bits(WORD_KINDS[DType.F32], words, base, left, right, 120, False)
    with pytest.raises(ValueError, match="cannot be predicted"):
        native.estimated_bits(WORD_KINDS[DType.I16], words, base, left, right, 120, False)
