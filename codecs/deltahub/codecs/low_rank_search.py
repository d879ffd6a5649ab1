"""Finds thin factors of small integers that predict fine-tuned words from base words.

Nothing here is part of the format. The difference of the two tensors is sketched by random
projections; its strongest directions are kept while they save more than their factors take.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.low_rank import FLOAT_WORDS, MAX_RANK, LowRank, Words, deltas
from deltahub.codecs.low_rank_merge import Effort, Merge, sharpened
from deltahub.codecs.low_rank_pair import F64, Factors, Pair, sketch
from deltahub.codecs.low_rank_plan import Plan, least_unit, plan_components, rounded, rounded_twice
from deltahub.codecs.low_rank_sizes import factor_bits, residual_bits, scale_classes

MIN_SIDE: Final = 64
_TRIAL: Final = {"default": 1 << 16, "max": 1 << 17}  # elements coded to see what a fit saves
_DIRECTIONS: Final = {"default": 40, "max": 80}  # looked at
_FACTORS: Final = 1 << 21  # numbers in one factor, at most
_RANKS: Final[dict[Effort, tuple[int, ...]]] = {  # tried beside the one that a model says
    "default": (4, 8, 16, 24, 32, 48),
    "max": (2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64),
}
_LEAST_GAIN: Final = 0.01  # of the size without a prediction


@np.errstate(all="ignore")  # what overflows is a fit that does not pay
def fit_low_rank(
    dtype: DType, source: Words, base: Words, rows: int, columns: int, effort: Effort = "default"
) -> LowRank | None:
    """Factors that make `source` smaller given `base`, or None where none pay.

    source, base: rows * columns words, unsigned. The same on the same machine for the same input.
    """
    if dtype not in FLOAT_WORDS or rows < MIN_SIDE or columns < MIN_SIDE:
        return None
    pair = Pair(dtype, source.reshape(rows, columns), base.reshape(rows, columns))
    if pair.is_wild() or not _has_directions(pair):
        return None
    factors, energy = _sketched(pair, effort)
    trial = Trial(pair, _TRIAL[effort])
    fits = [_fit_components(pair, factors, energy, trial, effort)]
    rank = _most_merged(pair, factors, energy)
    if rank and (merge := sharpened(pair, factors.first(rank), effort)):
        fits.append(_fit_merge(pair, merge, trial))
    # Of values near the end of a short dtype's range, a product's unit may have no exponent.
    floors = range(1, (1 << pair.words.exponent_bits) - 1)
    fits = [(bits, found) for bits, found in fits if found is None or found.floor in floors]
    bits, best = min(fits, key=lambda fit: fit[0], default=(0.0, None))
    return best if bits < (1 - _LEAST_GAIN) * trial.bits(None) else None


def _has_directions(pair: Pair) -> bool:
    """Whether a part of the tensor has a direction that noise of its size would not have."""
    rows = slice(None, None, -(-pair.rows // 192))
    columns = slice(None, None, -(-pair.columns // 1024))
    part = Pair(pair.dtype, pair.source[rows, columns].copy(), pair.base[rows, columns].copy())
    difference = part.differences(slice(None)).astype(np.float64)
    energy = float((difference**2).sum())
    if energy == 0:
        return False
    strongest = float(np.linalg.eigvalsh(difference @ difference.T)[-1])
    edge = (np.sqrt(part.rows) + np.sqrt(part.columns)) ** 2
    return bool(strongest * part.size > 1.5 * edge * (energy - strongest))


def _sketched(pair: Pair, effort: Effort) -> tuple[Factors, float]:
    most = min(min(pair.rows, pair.columns) // 2, _FACTORS // max(pair.rows, pair.columns))
    factors, energy = sketch(pair, min(_DIRECTIONS[effort], most), 1 if effort == "default" else 3)
    is_cut = factors.strengths[-1] > 3 * _noise_strength(pair)
    if effort == "default" and is_cut and _left(factors, energy)[-1] < energy / 100:
        return sketch(pair, min(_DIRECTIONS["max"], most), 1)
    return factors, energy


def _left(factors: Factors, energy: float) -> F64:
    """The sum of squares that the first components leave, from one component on."""
    return energy - np.cumsum(factors.strengths**2)


def _rounding(pair: Pair) -> float:
    """The mean square of what rounding the source words has added to the difference."""
    ulps, shares = pair.ulp_shares()
    return float((shares * ulps**2).sum()) / 12


def _noise_strength(pair: Pair) -> float:
    """How strong the strongest component of the rounding is."""
    return float(np.sqrt(_rounding(pair)) * (np.sqrt(pair.rows) + np.sqrt(pair.columns)))


def _most_merged(pair: Pair, factors: Factors, energy: float) -> int:
    """How many components an adapter may have whose sum was rounded; 0: this is no such sum."""
    found = int((factors.strengths > 1.1 * _noise_strength(pair)).sum())
    # Weak components may be hidden: they show once the words are weighed.
    rank = min(found + 2 + found // 8, MAX_RANK, len(factors.strengths) - 1)
    if (
        not 0 < found <= rank
        or _left(factors, energy)[rank - 1] > 1.4 * _rounding(pair) * pair.size
    ):
        return 0
    return rank


class Trial:
    """Some rows of a pair, coded for a try."""

    def __init__(self, pair: Pair, n_elements: int) -> None:
        least = min(16, max(1, 4 * n_elements // pair.columns))
        n_rows = min(pair.rows, max(least, n_elements // pair.columns))
        self._rows = np.linspace(0, pair.rows - 1, n_rows).astype(np.intp)
        self._share: float = pair.rows / n_rows
        self._pair = pair
        self._source, self._base = pair.source[self._rows], pair.base[self._rows]
        self._numbers = pair.floats(self._base).astype(np.float64)

    def bits(self, low_rank: LowRank | None) -> float:
        """About what the whole tensor takes, factors included."""
        predicted = self._base if low_rank is None else self._predicted(low_rank)
        d = deltas(self._source, predicted)
        classes = scale_classes(d, self._pair.exponents(predicted))
        bits = self._share * residual_bits(d, classes)
        if low_rank is not None:
            bits += factor_bits(low_rank.left) + factor_bits(low_rank.right.T)
        return bits

    def _predicted(self, low_rank: LowRank) -> Words:
        """What the format predicts, but for one word in thousands: in floats, far sooner.

        Base words that are no numbers stay, as in the format.
        """
        pair = self._pair
        unit = 2.0 ** (low_rank.floor - pair.words.unit_of_floor)
        added = low_rank.product(self._rows).astype(np.float64)
        if low_rank.is_rounded:
            added = pair.floats(pair.rounded(added * unit)).astype(np.float64) / unit
        with np.errstate(invalid="ignore", over="ignore"):
            added += np.trunc(self._numbers / unit)  # what is finer than the unit is cut to it
            added *= unit
        return np.where(np.isfinite(added), pair.rounded(added), self._base)


def _fit_components(
    pair: Pair, factors: Factors, energy: float, trial: Trial, effort: Effort
) -> tuple[float, LowRank]:
    floor = _rounding(pair)
    error = np.maximum(_left(factors, energy) / pair.size - floor, 1e-3 * floor)
    best = _best(pair, factors, plan_components(pair, factors, error), trial, 1)
    # The model of sizes knows no rows that did not change: trials say where to stop.
    at = best[1].rank
    smaller = [rank for rank in reversed(_RANKS[effort]) if rank < at]
    larger = [rank for rank in _RANKS[effort] if at < rank <= len(factors.strengths)]
    pays = best[0] < (1 - _LEAST_GAIN) * trial.bits(None)
    for ranks in (smaller, larger if pays else []):
        for rank in ranks:
            first = factors.first(rank)
            plans = plan_components(pair, first, error[:rank], least_rank=rank)
            fit = _best(pair, first, plans, trial, 1 if effort == "default" else 3)
            if fit[0] >= best[0]:
                break
            best = fit
    return best


def _fit_merge(pair: Pair, merge: Merge, trial: Trial) -> tuple[float, LowRank]:
    factors = merge.factors
    rank = len(factors.strengths)
    energy = float((factors.strengths**2).sum())
    error = _left(factors, energy) / pair.size + 0.01 * _rounding(pair)
    plans = plan_components(pair, factors, error)
    best = _best(pair, factors, plans, trial, 8, merge.is_rounded)
    # 16 bits a factor may be too few for words that have more than 8 significant ones.
    if pair.dtype is not DType.BF16 and 3 * rank <= MAX_RANK:
        unit = int(least_unit(pair, factors)[rank - 1])
        for more in (0, 2, 4):
            fit = replace(rounded_twice(pair, factors, unit + more), is_rounded=merge.is_rounded)
            best = min(best, (trial.bits(fit), fit), key=lambda fit: fit[0])
    fit = replace(best[1], is_rounded=not merge.is_rounded)
    return min(best, (trial.bits(fit), fit), key=lambda fit: fit[0])


def _best(
    pair: Pair,
    factors: Factors,
    plans: list[Plan],
    trial: Trial,
    n_trials: int,
    is_rounded: bool = False,
) -> tuple[float, LowRank]:
    """The fit that a trial finds smallest, walking from the plan that should be: bits and fit."""

    def tried(i: int) -> tuple[float, LowRank]:
        fit = replace(rounded(pair, factors, plans[i]), is_rounded=is_rounded)
        return trial.bits(fit), fit

    at = min(range(len(plans)), key=lambda i: plans[i].bits)
    best, left = tried(at), n_trials - 1
    for step in (-1, 1):
        here = at + step
        while left > 0 and 0 <= here < len(plans):
            other, left = tried(here), left - 1
            if other[0] >= best[0]:
                break
            best, here = other, here + step
    return best
