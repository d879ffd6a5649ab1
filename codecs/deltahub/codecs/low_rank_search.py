"""Finds thin factors of small integers that predict fine-tuned words from base words.

Nothing here is part of the format. The difference of the two tensors is sketched by random
projections; its strongest directions are kept while they save more than their factors take.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.dtypes import DType
from deltahub.codecs.low_rank import (
    FLOAT_WORDS,
    MAX_RANK,
    FloatWords,
    LowRank,
    Words,
    deltas,
    predict,
)
from deltahub.codecs.low_rank_sizes import factor_bits, residual_bits, scale_classes

Floats: TypeAlias = NDArray[np.floating[Any]]
F64: TypeAlias = NDArray[np.float64]
Effort: TypeAlias = Literal["default", "max"]

MIN_SIDE: Final = 64
_CHUNK: Final = 1 << 20  # elements that are floats at a time
_KEPT: Final = 1 << 24  # elements of a tensor whose differences are kept between passes
_TRIAL: Final = {"default": 1 << 16, "max": 1 << 18}  # elements coded to see what a fit saves
_SKETCH: Final = {"default": 40, "max": 80}  # directions looked at
_LEAST_GAIN: Final = 0.01  # of the size without a prediction


@dataclass(frozen=True)
class Factors:
    """left * strengths @ right: orthonormal columns and rows, strengths falling."""

    left: F64
    strengths: F64
    right: F64


class Pair:
    """A fine-tuned and a base tensor of the same dtype, as floats where they are asked for."""

    def __init__(self, dtype: DType, source: Words, base: Words) -> None:
        self.dtype, self.source, self.base = dtype, source, base
        self.words: FloatWords = FLOAT_WORDS[dtype]
        self.rows, self.columns = source.shape
        self._kept: Floats | None = None

    @property
    def size(self) -> int:
        return int(self.source.size)

    def differences(self, rows: slice) -> Floats:
        """Source less base, float32; 0 where either is no number."""
        with np.errstate(invalid="ignore", over="ignore"):
            difference = self._floats(self.source[rows]) - self._floats(self.base[rows])
            is_sound = np.isfinite(difference.sum())
        if not is_sound:
            difference[~np.isfinite(difference)] = 0
        return difference

    def chunks(self) -> Iterator[tuple[slice, Floats]]:
        """All rows, some at a time, with their differences."""
        if self._kept is None and self.size <= _KEPT:
            self._kept = np.empty((self.rows, self.columns), np.float32)
            for rows in self.row_slices():
                self._kept[rows] = self.differences(rows)
        for rows in self.row_slices():
            yield rows, self.differences(rows) if self._kept is None else self._kept[rows]

    def row_slices(self) -> Iterator[slice]:
        n_rows = max(1, _CHUNK // self.columns)
        for start in range(0, self.rows, n_rows):
            yield slice(start, min(start + n_rows, self.rows))

    def ulps(self, rows: slice) -> Floats:
        """The distance of a source word to the next, float32."""
        exponents = np.arange(self.words.max_exponent + 1)
        exponents = np.maximum(exponents, 1) - self.words.bias - self.words.mantissa_bits
        by_exponent = np.ldexp(np.float32(1), exponents.astype(np.int32))
        return by_exponent[self.words.exponents(self.source[rows])]

    def _floats(self, words: Words) -> Floats:
        if self.dtype is DType.BF16:
            return (words.astype(np.uint32) << 16).view(np.float32)
        return words.view(np.float16 if self.dtype is DType.F16 else np.float32).astype(np.float32)


def fit_low_rank(
    dtype: DType, source: Words, base: Words, rows: int, columns: int, effort: Effort = "default"
) -> LowRank | None:
    """Factors that make `source` smaller given `base`, or None where none pay.

    source, base: rows * columns words, unsigned. The same on the same machine for the same input.
    """
    if dtype not in FLOAT_WORDS or rows < MIN_SIDE or columns < MIN_SIDE:
        return None
    pair = Pair(dtype, source.reshape(rows, columns), base.reshape(rows, columns))
    if not _has_directions(pair):
        return None
    factors, energy = sketch(pair, effort)
    trial = Trial(pair, _TRIAL[effort])
    fits = [fit for fit in plan_fits(pair, factors, energy, trial, effort)]
    best = min(fits, key=trial.bits, default=None)
    if best is None or trial.bits(best) > (1 - _LEAST_GAIN) * trial.bits(None):
        return None
    return best


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


def sketch(pair: Pair, effort: Effort) -> tuple[Factors, float]:
    """The strongest directions of the difference, and its sum of squares.

    The row space is found on part of the rows, by powers; then all rows are looked at twice.
    """
    n_directions = min(_SKETCH[effort], pair.rows // 2, pair.columns // 2)
    step = 1 if effort == "max" else max(1, min(4, pair.rows // (4 * n_directions)))
    step = max(step, -(-pair.size // _KEPT))
    part = pair.differences(slice(None, None, step))
    start = np.random.default_rng(0).standard_normal((len(part), n_directions), np.float32)
    basis = _orthonormal(part.T @ start)
    for _ in range(1 if effort == "default" else 3):
        basis = _orthonormal(part.T @ (part @ basis))
    left = np.empty((pair.rows, n_directions), np.float32)
    energy = 0.0
    for rows, difference in pair.chunks():
        left[rows] = difference @ basis
        energy += float(np.vdot(difference, difference))
    left = _orthonormal(left)
    right = np.zeros((n_directions, pair.columns), np.float32)
    for rows, difference in pair.chunks():
        right += left[rows].T @ difference
    exact = right.astype(np.float64)
    squares, turn = np.linalg.eigh(exact @ exact.T)
    strengths, turn = np.sqrt(np.maximum(squares[::-1], 1e-300)), turn[:, ::-1]
    return Factors(left @ turn, strengths, (turn.T @ exact) / strengths[:, None]), energy


def _orthonormal(columns: Floats) -> Floats:
    """An orthonormal basis, strongest direction first. Some ten times faster than a QR."""
    exact = columns.astype(np.float64)
    squares, turn = np.linalg.eigh(exact.T @ exact)
    lengths = np.sqrt(np.maximum(squares, 1e-14 * squares[-1]))
    basis: Floats = (exact @ (turn / lengths)[:, ::-1]).astype(columns.dtype)
    return basis


class Trial:
    """Some rows of a pair, coded for a try."""

    def __init__(self, pair: Pair, n_elements: int) -> None:
        n_rows = min(pair.rows, max(16, n_elements // pair.columns))
        self.rows = np.linspace(0, pair.rows - 1, n_rows).astype(np.intp)
        self._pair = pair
        self._source, self._base = pair.source[self.rows], pair.base[self.rows]
        self._bits: dict[int, float] = {}

    def residual(self, low_rank: LowRank | None) -> NDArray[np.int64]:
        """How far the trial's words are from their predictions."""
        return deltas(self._pair.dtype, self._source, self._predicted(low_rank))

    def bits(self, low_rank: LowRank | None) -> float:
        """About what the whole tensor takes, factors included."""
        if id(low_rank) not in self._bits:
            predicted = self._predicted(low_rank)
            d = deltas(self._pair.dtype, self._source, predicted)
            classes = scale_classes(d, self._pair.words.exponents(predicted))
            bits = residual_bits(d, classes) * self._pair.rows / len(self.rows)
            if low_rank is not None:
                bits += factor_bits(low_rank.left) + factor_bits(low_rank.right.T)
            self._bits[id(low_rank)] = bits
        return self._bits[id(low_rank)]

    def _predicted(self, low_rank: LowRank | None) -> Words:
        if low_rank is None:
            return self._base
        return predict(self._pair.dtype, self._base, low_rank, self.rows)


@dataclass(frozen=True)
class Plan:
    """How many components, and how coarse: the noise that rounding each may add, per element."""

    rank: int
    noise: float


def plan_fits(
    pair: Pair, factors: Factors, energy: float, trial: Trial, effort: Effort
) -> Iterator[LowRank]:
    """Fits worth a trial, by what a simple model of their sizes says."""
    plans = sorted(_plans(pair, factors, energy), key=lambda entry: entry[0])
    for _, plan in plans[: 1 if effort == "default" else 6]:
        yield rounded_fit(pair, factors, plan)


def _plans(pair: Pair, factors: Factors, energy: float) -> Iterator[tuple[float, Plan]]:
    ulps = pair.ulps(slice(None, None, -(-pair.rows // 64)))
    steps, counts = np.unique(ulps, return_counts=True)
    steps = steps.astype(np.float64)
    shares = counts / counts.sum()
    floor = float((shares * steps**2).sum()) / 12
    left = energy - np.concatenate(([0.0], np.cumsum(factors.strengths**2)))
    n_values = pair.rows + pair.columns

    def element_bits(noise: float) -> float:
        return float((shares * _bits_of(noise / steps**2)).sum())

    for rank in range(min(MAX_RANK, len(factors.strengths)) + 1):
        error = max(left[rank] / pair.size - floor, 1e-3 * floor)
        if rank == 0:
            continue
        for share in (0.5, 1.0, 2.0):
            noise = share * error * n_values / pair.size
            strides = 6 * noise * np.sqrt(pair.size) / factors.strengths[:rank]
            values = factors.strengths[:rank] / np.sqrt(pair.size) / strides
            bits = pair.size * element_bits(error + rank * noise)
            yield bits + n_values * float(_bits_of(values).sum()), Plan(rank, noise)


def _bits_of(variance: Floats) -> Floats:
    """About the entropy of a rounded number of this variance before it is rounded."""
    return 0.5 * np.log2(1 + 17 * variance)


def rounded_fit(pair: Pair, factors: Factors, plan: Plan) -> LowRank:
    """The factors' strongest components in integers.

    The noise of a component grows with its strength and with its unit: the strongest sets the
    unit of all, and the weaker are multiples of powers of two.
    """
    words, rank = pair.words, plan.rank
    strengths = np.maximum(factors.strengths[:rank], 1e-300)
    units = np.log2(6 * plan.noise * np.sqrt(pair.size) / strengths)
    unit = int(np.rint(units.min()))
    strides = np.clip(np.rint(units - unit), 0, 6).astype(np.int64)
    balance = (pair.rows / pair.columns) ** 0.25
    scales = np.sqrt(strengths / np.ldexp(1.0, unit + strides))
    lefts = factors.left[:, :rank] * (scales * balance)
    rights = factors.right[:rank] * (scales / balance)[:, None]
    left = _integers(lefts, np.left_shift(1, (strides + 1) // 2))
    right = _integers(rights.T, np.left_shift(1, strides // 2)).T
    floor = unit + words.bias + words.mantissa_bits + words.guard_bits
    return LowRank(left, np.ascontiguousarray(right), floor)


def _integers(values: F64, strides: NDArray[np.int64]) -> NDArray[np.int16]:
    most = 32767 // strides
    return (np.clip(np.rint(values), -most, most) * strides).astype(np.int16)
