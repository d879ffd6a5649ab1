"""Finds thin factors of small integers that predict fine-tuned words from base words.

Nothing here is part of the format. The difference of the two tensors is sketched by random
projections; its strongest directions are kept while they save more than their factors take.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from deltahub.codecs._native import factor_bits, fit_directions, trial_bits
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, MAX_RANK, LowRank, Words
from deltahub.codecs.fm_delta.low_rank.quantize import (
    Plan,
    least_unit,
    plan_components,
    rounded,
    rounded_twice,
)
from deltahub.codecs.fm_delta.low_rank.randomized_svd import Factors, sketch
from deltahub.codecs.fm_delta.low_rank.refine import Effort, Merge, sharpened
from deltahub.codecs.fm_delta.low_rank.tensor_pair import F64, Pair
from deltahub.codecs.words import WORD_KINDS

MIN_SIDE: Final = 64
_TRIAL: Final = {"default": 1 << 16, "max": 1 << 17}  # elements coded to see what a fit saves
_DIRECTIONS: Final = {"default": 40, "max": 80}  # looked at
_F32_DIRECTIONS: Final = 80  # at least: of words so fine, weaker ones still tell digits
_POWERS: Final = {"default": 2, "max": 3}  # steps of a sketch
_COUNTED_ROWS: Final = 512  # of a left factor, at least, to see what it takes
_FACTORS: Final = 1 << 21  # numbers in one factor, at most
_LONGEST: Final = _FACTORS // 32  # rows and columns of words that native code looks at alone
_RANKS: Final[dict[Effort, tuple[int, ...]]] = {  # tried beside the one that a model says
    "default": (4, 8, 16, 24, 32, 48),
    "max": (2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64),
}
_WALKED: Final = 1 << 20  # elements, at least, of a tensor whose ranks are tried by default
_ALMOST_ALL: Final = 0.4  # of the size without a prediction: less, and factors take most of it
_CLEAR: Final = 0.2  # of the size without a prediction: a merge of less is not beaten
_LEAST_GAIN: Final = 0.01  # of the size without a prediction


@np.errstate(all="ignore")  # what overflows is a fit that does not pay
def fit_low_rank(
    dtype: DType, source: Words, base: Words, rows: int, columns: int, effort: Effort = "default"
) -> LowRank | None:
    """Factors that make `source` smaller given `base`, or None where none pay.

    source, base: rows * columns words, unsigned. The same on the same machine for the same input.
    """
    if dtype not in FLOAT_WORDS:
        return None
    near = base.reshape(rows, columns)
    found: LowRank | None = None
    if dtype is DType.BF16 and effort == "default" and max(rows, columns) <= _LONGEST:
        found, is_worth_more = _quick_fit(source.reshape(rows, columns), near)
        if not is_worth_more:
            return found
    n_known = _known_rows(near)
    if n_known < MIN_SIDE or columns < MIN_SIDE:
        return None
    pair = Pair(dtype, source.reshape(rows, columns)[:n_known], near[:n_known])
    if pair.is_wild():
        return found
    low_rank = _fit(pair, effort)
    if low_rank is None or n_known == rows:
        return low_rank or found
    left = np.zeros((rows, low_rank.rank), np.int16)
    left[:n_known] = low_rank.left
    return replace(low_rank, left=left)


def _quick_fit(source: Words, base: Words) -> tuple[LowRank | None, bool]:
    """What native code finds in words of BF16, and whether to look closer: see fit_directions."""
    left, right, floor, is_rounded, is_worth_more = fit_directions(
        WORD_KINDS[DType.BF16], source, base
    )
    if not left:
        return None, is_worth_more
    factors = [np.frombuffer(factor, np.int16) for factor in (left, right)]
    rows, columns = source.shape
    found = LowRank(
        factors[0].reshape(rows, -1), factors[1].reshape(-1, columns), floor, is_rounded
    )
    return found, is_worth_more


def _known_rows(base: Words) -> int:
    """The rows up to the last that is not zero.

    Those behind it are new, as of a vocabulary that was extended: whole weights, no differences,
    and so large beside these that they would take all directions.
    """
    if len(base) == 0 or base[-1].any():
        return len(base)
    return int(np.flatnonzero(base.any(axis=1)).max(initial=-1)) + 1


def _fit(pair: Pair, effort: Effort) -> LowRank | None:
    found = _sketched(pair, effort)
    if found is None:
        return None
    factors, energy = found
    is_small = effort == "default" and pair.size < _WALKED
    trial = Trial(pair, _TRIAL[effort] >> is_small)
    fits = []
    rank = _most_merged(pair, factors, energy)
    if rank and (merge := sharpened(pair, factors.first(rank), effort)):
        fits.append(_fit_merge(pair, merge, trial))
    most = min((fit.bits for fit in fits), default=_ALMOST_ALL * trial.without)
    if not fits or effort == "max" or most > _CLEAR * trial.without:
        fits.append(_fit_components(pair, factors, energy, trial, effort, most))
    best = min(fits, key=lambda fit: fit.bits)
    return best.low_rank() if best.bits < (1 - _LEAST_GAIN) * trial.without else None


def _sketched(pair: Pair, effort: Effort) -> tuple[Factors, float] | None:
    most = min(min(pair.rows, pair.columns) // 2, _FACTORS // max(pair.rows, pair.columns))
    least = max(_DIRECTIONS[effort], _F32_DIRECTIONS if pair.dtype is DType.F32 else 0)
    few, many = (min(n, most) for n in (least, _DIRECTIONS["max"]))
    return sketch(pair, few, _POWERS[effort], many)


def _left(factors: Factors, energy: float) -> F64:
    """The sum of squares that the first components leave, from one component on."""
    return energy - np.cumsum(factors.strengths**2)


def _most_merged(pair: Pair, factors: Factors, energy: float) -> int:
    """How many components an adapter may have whose sum was rounded; 0: this is no such sum."""
    found = int((factors.strengths > 1.1 * pair.noise_strength(pair.rows)).sum())
    # Weak components may be hidden: they show once the words are weighed.
    rank = min(found + 2 + found // 8, MAX_RANK, len(factors.strengths) - 1)
    if (
        not 0 < found <= rank
        or _left(factors, energy)[rank - 1] > 1.4 * pair.rounding * pair.size * pair.changed_share
    ):
        return 0
    return rank


class Fit(NamedTuple):
    """A way to make integers of factors, and about what the tensor takes with them."""

    bits: float
    factors: Factors
    integers: Callable[[Factors], LowRank]  # of factors with all left rows or with some of them

    def low_rank(self) -> LowRank:
        return self.integers(self.factors)


class Trial:
    """Some rows of a pair, coded for a try."""

    def __init__(self, pair: Pair, n_elements: int) -> None:
        least = min(16, max(1, 4 * n_elements // pair.columns))
        n_rows = min(pair.rows, max(least, n_elements // pair.columns))
        n_counted = min(pair.rows, max(n_rows, _COUNTED_ROWS))
        coded, counted = (
            np.arange(n) * (pair.rows - 1) // max(n - 1, 1) for n in (n_rows, n_counted)
        )
        is_asked = np.zeros(pair.rows, bool)
        is_asked[coded] = is_asked[counted] = True
        self._rows = np.flatnonzero(is_asked)  # whose left factors are made integers
        self._coded = np.searchsorted(self._rows, coded)
        self._pair, self._share = pair, pair.rows / n_rows
        self._source, self._base = pair.source[coded], pair.base[coded]
        nothing = np.zeros((n_rows, 0), np.int16), np.zeros((0, pair.columns), np.int16)
        self.without = self._residual_bits(LowRank(*nothing, floor=1))

    def fit(self, factors: Factors, integers: Callable[[Factors], LowRank]) -> Fit:
        """The fit, with about the bits that the whole tensor takes, factors included."""
        low_rank = integers(replace(factors, left=factors.left[self._rows]))
        # Of values near the end of a short dtype's range, a unit may have no exponent.
        if not 0 < low_rank.floor < self._pair.words.max_exponent:
            return Fit(np.inf, factors, integers)
        bits = self._residual_bits(replace(low_rank, left=low_rank.left[self._coded]))
        bits += self._pair.rows / len(self._rows) * factor_bits(low_rank.left)
        bits += factor_bits(np.ascontiguousarray(low_rank.right.T))
        return Fit(bits, factors, integers)

    def _residual_bits(self, low_rank: LowRank) -> float:
        bits = trial_bits(
            self._pair.kind,
            self._source,
            self._base,
            low_rank.left,
            low_rank.right,
            low_rank.floor,
            low_rank.is_rounded,
        )
        return float(self._share * bits)


def _fit_components(
    pair: Pair, factors: Factors, energy: float, trial: Trial, effort: Effort, most: float
) -> Fit:
    """most: bits; a fit of fewer is worth some more trials."""
    floor = pair.rounding
    error = np.maximum(_left(factors, energy) / pair.size - floor, 1e-3 * floor)
    plans = plan_components(pair, factors, error)
    best, at = _best(pair, factors, plans, trial, 4, most=most)
    if effort == "default" and pair.size < _WALKED:
        return best
    # The model of sizes knows no rows that did not change: trials say where to stop.
    smaller = [rank for rank in reversed(_RANKS[effort]) if rank < at.rank]
    larger = [rank for rank in _RANKS[effort] if at.rank < rank <= len(factors.strengths)]
    pays = best.bits < (1 - _LEAST_GAIN) * trial.without
    for ranks in (smaller, larger if pays else []):
        for rank in ranks:
            first = factors.first(rank)
            plans = plan_components(pair, first, error[:rank], least_rank=rank)
            is_quick = effort == "default" and pair.dtype is not DType.F32
            fit, _ = _best(pair, first, plans, trial, 1 if is_quick else 3)
            if fit.bits >= best.bits:
                break
            best = fit
    return best


def _fit_merge(pair: Pair, merge: Merge, trial: Trial) -> Fit:
    factors, is_rounded = merge
    energy = float((factors.strengths**2).sum())
    error = _left(factors, energy) / pair.size + 0.01 * pair.rounding
    plans = plan_components(pair, factors, error, is_merge=True)
    fits = [_best(pair, factors, plans, trial, 8, is_rounded, finer=3)[0]]
    # 16 bits a factor may be too few for words that have more than 8 significant ones. A component
    # takes three then: the weakest, which may be noise, shall not take the strong ones' places.
    if pair.dtype is not DType.BF16:
        strongest = factors.first(MAX_RANK // 3)
        unit = int(least_unit(pair, strongest)[-1])
        for more in (0, 2, 4):
            twice = partial(rounded_twice, pair, unit=unit + more, is_rounded=is_rounded)
            fits.append(trial.fit(strongest, twice))
    best = min(fits, key=lambda fit: fit.bits)
    other = trial.fit(
        best.factors, lambda some: replace(best.integers(some), is_rounded=not is_rounded)
    )
    return min(best, other, key=lambda fit: fit.bits)


def _best(
    pair: Pair,
    factors: Factors,
    plans: list[Plan],
    trial: Trial,
    n_trials: int,
    is_rounded: bool = False,
    finer: int = 0,
    most: float = np.inf,
) -> tuple[Fit, Plan]:
    """The fit that a trial finds smallest, walking from the plan that should be; its plan.

    finer: steps to a finer plan from the one that the model of sizes finds smallest. most: bits of
    the first trial from which on there are no more.
    """

    def tried(i: int) -> Fit:
        return trial.fit(factors, partial(rounded, pair, plan=plans[i], is_rounded=is_rounded))

    at = max(0, min(range(len(plans)), key=lambda i: plans[i].bits) - finer)
    best, plan = tried(at), plans[at]
    left = n_trials - 1 if best.bits < most else 0
    for step in (-1, 1):
        here = at + step
        while left > 0 and 0 <= here < len(plans):
            other, left = tried(here), left - 1
            if other.bits >= best.bits:
                break
            best, plan, here = other, plans[here], here + step
        if plan is not plans[at]:
            break
    return best, plan
