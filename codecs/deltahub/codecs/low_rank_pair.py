"""A fine-tuned and a base tensor as floats, and the strongest directions of their difference."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.dtypes import DType
from deltahub.codecs.low_rank import FLOAT_WORDS, FloatWords, Words

Floats: TypeAlias = NDArray[np.floating[Any]]
F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]

_CHUNK: Final = 1 << 18  # elements that are floats at a time: they stay in a core's caches
_SKETCHED: Final = 1 << 22  # elements whose differences a sketch keeps
_SAMPLED: Final = 1 << 20  # elements, about, that are looked at all at once


class Pair:
    """A fine-tuned and a base tensor of the same dtype, as floats where they are asked for."""

    def __init__(self, dtype: DType, source: Words, base: Words) -> None:
        self.dtype, self.source, self.base = dtype, source, base
        self.words: FloatWords = FLOAT_WORDS[dtype]
        self.rows, self.columns = source.shape
        # Float32 would round what the last digits of F32 words say of a product.
        self.real = np.dtype(np.float64 if dtype is DType.F32 else np.float32)

    @property
    def size(self) -> int:
        return int(self.source.size)

    def is_wild(self) -> bool:
        """Whether a finite word is so large (2^30 and more) that squares of sums may overflow.

        No trained weight is: words that are, are random bits or no floats at all.
        """
        large = min(self.words.bias + 31, self.words.max_exponent) << self.words.mantissa_bits
        infinite = self.words.max_exponent << self.words.mantissa_bits
        for words in (self.source, self.base):
            for rows in self.row_slices():
                magnitudes = words[rows] & words.dtype.type(self.words.sign - 1)
                if (
                    magnitudes.max() >= large
                    and ((magnitudes >= large) & (magnitudes < infinite)).any()
                ):
                    return True
        return False

    def differences(self, rows: slice, columns: slice = slice(None)) -> Floats:
        """Source less base; 0 where either is no number."""
        source, base = self.source[rows, columns], self.base[rows, columns]
        with np.errstate(invalid="ignore", over="ignore"):
            difference = self.floats(source)
            difference -= self.floats(base)
            is_sound = np.isfinite(difference.sum())
        if not is_sound:
            difference[~np.isfinite(difference)] = 0
        return difference

    def chunks(self) -> Iterator[tuple[slice, Floats]]:
        """All rows, some at a time, with their differences."""
        for rows in self.row_slices():
            yield rows, self.differences(rows)

    def row_slices(self, columns: int | None = None, stride: int = 1) -> Iterator[slice]:
        """All rows, or one in every stride, some at a time: so many that their floats are few.

        columns: how many of them are looked at, where it is not all.
        """
        n_rows = max(1, _CHUNK // (columns or self.columns)) * stride
        for start in range(0, self.rows, n_rows):
            yield slice(start, min(start + n_rows, self.rows), stride)

    def part(self, rows: slice) -> "Pair":
        """These rows of the pair, not copied."""
        return Pair(self.dtype, self.source[rows], self.base[rows])

    def sample(self) -> slice:
        """Some of the rows, to look at them all at once."""
        n_rows = max(1, min(64, _SAMPLED // self.columns))
        return slice(None, None, -(-self.rows // n_rows))

    def exponents(self, words: Words) -> I32:
        """Exponent fields, at least 1: so they tell the distance of a word to the next."""
        exponents = (words >> words.dtype.type(self.words.mantissa_bits)).astype(np.int32)
        exponents &= self.words.max_exponent
        return np.maximum(exponents, 1, out=exponents)

    def ulp_shares(self) -> tuple[F64, F64]:
        """The ulps that occur in some of the rows, and how often: shares of 1."""
        counts = np.bincount(self.exponents(self.source[self.sample()]).ravel())
        exponents = np.flatnonzero(counts)
        ulps = np.ldexp(1.0, exponents - self.words.bias - self.words.mantissa_bits)
        return ulps, counts[exponents] / counts.sum()

    def floats(self, words: Words) -> Floats:
        """The words as numbers, in an array of their own."""
        if self.dtype is DType.BF16:
            wide = words.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return words.view(np.float16 if self.dtype is DType.F16 else np.float32).astype(self.real)

    def rounded(self, numbers: Floats) -> Words:
        """The words nearest to numbers; about so: those of BF16 are rounded to F32 before."""
        if self.dtype is DType.F16:
            return numbers.astype(np.float16).view(np.uint16)
        words = numbers.astype(np.float32).view(np.uint32)
        if self.dtype is DType.F32:
            return words
        words += 0x7FFF + ((words >> 16) & 1)
        words >>= 16
        return words.astype(np.uint16)


@dataclass(frozen=True)
class Factors:
    """left * strengths @ right: orthonormal columns and rows, strengths falling."""

    left: F64
    strengths: F64
    right: F64

    def first(self, rank: int) -> "Factors":
        """The strongest components."""
        return Factors(self.left[:, :rank], self.strengths[:rank], self.right[:rank])

    @classmethod
    def of_product(cls, left: F64, right: F64) -> "Factors":
        """left @ right, of any columns and rows."""
        columns = orthonormal(left)
        core = (columns.T @ left) @ right
        squares, turn = np.linalg.eigh(core @ core.T)
        squares, turn = np.maximum(squares, max(1e-20 * squares[-1], 1e-300))[::-1], turn[:, ::-1]
        strengths = np.sqrt(squares)
        return cls(columns @ turn, strengths, (turn.T @ core) / strengths[:, None])


def sketch(pair: Pair, n_directions: int, powers: int) -> tuple[Factors, float]:
    """The strongest directions of the difference, and its sum of squares.

    The row space is found on part of the rows, by powers; then all rows are looked at twice.
    n_directions: at most half of the rows and of the columns.
    """
    step = 1 if powers > 1 else max(1, min(4, pair.rows // (4 * n_directions)))
    step = max(step, -(-pair.size // _SKETCHED))
    part = pair.differences(slice(None, None, step))
    start = np.random.default_rng(0).standard_normal((len(part), n_directions))
    basis = orthonormal(part.T @ start.astype(pair.real))
    for _ in range(powers):
        basis = orthonormal(part.T @ (part @ basis))
    left = np.empty((pair.rows, n_directions), pair.real)
    energy = 0.0
    for rows, difference in pair.chunks():
        left[rows] = difference @ basis
        energy += float(np.vdot(difference, difference))
    left = orthonormal(left)
    right = np.zeros((n_directions, pair.columns), pair.real)
    for rows, difference in pair.chunks():
        right += left[rows].T @ difference
    return Factors.of_product(left.astype(np.float64), right.astype(np.float64)), energy


def orthonormal(columns: Floats) -> Floats:
    """An orthonormal basis, strongest direction first. Some ten times faster than a QR."""
    exact = columns.astype(np.float64)
    squares, turn = np.linalg.eigh(exact.T @ exact)
    lengths = np.sqrt(np.maximum(squares, 1e-14 * squares[-1]))
    basis: Floats = (exact @ (turn / lengths)[:, ::-1]).astype(columns.dtype)
    return basis
