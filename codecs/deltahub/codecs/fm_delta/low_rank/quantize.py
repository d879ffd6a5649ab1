"""How many components of a product to keep, and how coarse their integers may be."""

from dataclasses import dataclass
from functools import cache
from math import erfc
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs._native import make_integers
from deltahub.codecs.fm_delta.low_rank.prediction import MAX_RANK, LowRank
from deltahub.codecs.fm_delta.low_rank.randomized_svd import Factors
from deltahub.codecs.fm_delta.low_rank.tensor_pair import F64, Floats, Pair

# log2 of a component's noise, of what the error would allow
_NOISES: Final = np.arange(-8, 3)
_NOISES_OF_MERGES: Final = np.arange(-22, 1)
_REACH: Final = 12  # how many times the root mean square product the greatest may be
_TABLES: Final = 200  # bits that a component takes beside its values, about
_MOST_STRIDE: Final = 12  # log2 of the coarsest unit of a plan, in its finest


@dataclass(frozen=True)
class Plan:
    """Components to keep, and log2 of the unit of each one's product."""

    units: NDArray[np.int64]  # (rank,); none is finer than the first
    bits: float  # about what the tensor takes

    @property
    def rank(self) -> int:
        return len(self.units)


def least_unit(pair: Pair, factors: Factors) -> NDArray[np.int64]:
    """log2 of the finest unit in which this many components, from one on, fit the format."""
    balance = float((pair.rows / pair.columns) ** 0.25)
    left = np.abs(factors.left).max(axis=0) * balance
    right = np.abs(factors.right).max(axis=1) / balance
    largest = np.maximum(left, right)
    # Less than a unit above what is left of the greatest product, and of the greatest integers.
    of_product = _log2(np.sqrt(np.cumsum(factors.strengths**2)) * _REACH / np.sqrt(pair.size))
    of_integers = _log2(np.maximum.accumulate(factors.strengths * largest**2)) - 30
    units = np.ceil(np.maximum(of_product - 30, of_integers) + 0.01).astype(np.int64)
    return np.maximum(units, 1 - pair.words.unit_of_floor)


def _log2(x: F64) -> F64:
    return np.log2(np.maximum(x, 1e-300))


def plan_components(
    pair: Pair, factors: Factors, error: F64, least_rank: int = 1, is_merge: bool = False
) -> list[Plan]:
    """The plans of fewest bits by a simple model of sizes, from the finest to the coarsest.

    error: element i is the mean square of what i + 1 components leave, less what rounding the
    source has added. The noise of a rounded component grows with its strength and with its unit. So
    the strongest gets the finest unit, and the weaker ones multiples of it by powers of two.
    """
    strengths = np.maximum(factors.strengths[:MAX_RANK], 1e-300)
    rank = len(strengths)
    root, n_values = np.sqrt(pair.size), pair.rows + pair.columns
    shares = _NOISES_OF_MERGES if is_merge else _NOISES
    noises = np.ldexp(error[rank // 2] * n_values / pair.size, shares)
    finest = np.log2(6 * noises[:, None] * root / strengths)
    units = np.maximum(np.rint(finest[:, :1]), least_unit(pair, factors)[rank - 1])
    units = units + np.clip(np.rint(finest - units), 0, _MOST_STRIDE)
    units = units.astype(np.int64)
    added = np.cumsum(np.ldexp(strengths, units), axis=1) / (6 * root)
    bits = pair.size * _residual_bits(pair, _log2(error[:rank] + added))
    squares = np.ldexp(strengths / root, -units)
    bits += np.cumsum(n_values * _bits_of(squares) + _TABLES, axis=1)
    ranks = least_rank + np.argmin(bits[:, least_rank - 1 :], axis=1)
    return [
        Plan(units[i, :n_kept], float(bits[i, n_kept - 1]))
        for i, n_kept in enumerate(ranks.tolist())
    ]


def _bits_of(variance: Floats) -> Floats:
    """About the entropy of a rounded number, from its variance before it is rounded."""
    bits: Floats = 0.5 * np.log2(1 + 17 * variance)
    return bits


_ERRORS: Final = np.arange(-24, 9) / 2  # log2 of the variance of an error, in ulps


@cache
def _bits_of_errors() -> F64:
    """The entropy of how many words a number is rounded elsewhere for an error, by its variance."""
    bits = np.empty(len(_ERRORS))
    for i, deviation in enumerate(2.0 ** (_ERRORS / 2)):
        # How far the error is expected to be beyond each whole number; a phase that is as likely as
        # all others makes a triangle of each one.
        ends = np.arange(-2, 10 + int(6 * deviation)) / deviation
        above = np.array([0.5 * erfc(end / np.sqrt(2)) for end in ends])
        beyond = np.exp(-(ends**2) / 2) / np.sqrt(2 * np.pi) - ends * above
        shares = deviation * (beyond[:-2] - 2 * beyond[1:-1] + beyond[2:])
        shares = np.maximum(shares[1:], 1e-30)  # of 0, 1 and so on
        information = -shares * np.log2(shares)
        bits[i] = 2 * information.sum() - information[0]
    return bits


def _residual_bits(pair: Pair, variances: F64) -> F64:
    """Bits a word, from log2 of the variance of what is left before it is rounded."""
    steps, shares = pair.ulp_shares
    known = np.arange(-24, 41) + np.rint(2 * np.log2(steps[np.argmax(shares)]))
    errors = known[:, None] - 2 * np.log2(steps)
    bits = np.interp(errors, _ERRORS, _bits_of_errors()) + np.maximum(errors - _ERRORS[-1], 0) / 2
    of_words: F64 = np.interp(variances, known, bits @ shares)
    return of_words


def rounded(pair: Pair, factors: Factors, plan: Plan, is_rounded: bool = False) -> LowRank:
    """The factors' strongest components in integers, as the plan has it.

    factors: those of the pair, or some of their left rows.
    """
    words, rank, unit = pair.words, plan.rank, int(plan.units.min())
    balance = float((pair.rows / pair.columns) ** 0.25)
    scales = np.sqrt(np.ldexp(factors.strengths[:rank], -plan.units)).astype(factors.left.dtype)
    strides = (plan.units - unit).astype(np.int32)
    left = _integers(factors.left[:, :rank], scales * balance, (strides + 1) // 2)
    right = _integers(factors.right[:rank], scales / balance, strides // 2, is_by_row=True)
    return LowRank(left, right, unit + words.unit_of_floor, is_rounded)


def rounded_twice(pair: Pair, factors: Factors, unit: int, is_rounded: bool = False) -> LowRank:
    """All components in integers, and two more for each, of what rounding its factors has lost.

    factors: those of the pair, or some of their left rows.
    """
    balance = float((pair.rows / pair.columns) ** 0.25)
    scales = np.sqrt(np.ldexp(factors.strengths, -unit))
    lefts, rights = factors.left * (scales * balance), factors.right.T * (scales / balance)
    left, right = np.rint(lefts), np.rint(rights)
    # What is lost is below 1/2: it is multiplied, and what it belongs to divided, so that the
    # integers of both are as coarse.
    gains = np.maximum(np.sqrt(scales / pair.size**0.25 * 3.5), 1)
    all_left = np.hstack([left, (lefts - left) * gains, left / gains])
    all_right = np.vstack([right.T, (rights / gains).T, ((rights - right) * gains).T])
    floor = unit + pair.words.unit_of_floor
    ones, none = np.ones(all_left.shape[1]), np.zeros(all_left.shape[1], np.int32)
    integers = _integers(all_left, ones, none), _integers(all_right, ones, none, is_by_row=True)
    return LowRank(*integers, floor, is_rounded)


def _integers(
    values: Floats, scales: Floats, strides: NDArray[np.int32], is_by_row: bool = False
) -> NDArray[np.int16]:
    """values * scales, each scale and stride of a component: a row, or else a column."""
    integers = np.empty(values.shape, np.int16)
    make_integers(values, scales, strides, is_by_row, integers)
    return integers
