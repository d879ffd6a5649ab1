"""Half steps of a fit: one thin factor of a product anew, given the other.

A word tells its product as exactly as the word itself is fine, so the small ones tell most. Two
rules say what words ask of their products: to be near the difference (least squares), or to lie
where rounding makes the word (intervals). The second is sharper, for products that are near.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.low_rank import Words
from deltahub.codecs.low_rank_pair import F64, I32, Floats, Pair

_MANTISSA: Final = 23  # bits of a float32
_BIAS: Final = 127
_AT_ONCE: Final = 1 << 21  # numbers in the matrices that are solved at once
_MOST_SUMS: Final = 1 << 21  # normal equations' numbers at a time
_SOLVED: Final = 1 << 10  # normal equations that are solved at a time
_MOST_WORK: Final = 1 << 31  # words times pairs of components that a half step looks at


@dataclass(frozen=True)
class Rule:
    """What words ask of their products.

    octaves: words finer than 2^-octaves of the typical one count as if they were as coarse. Too
    fine ones from the start, and a few words would rule before the factors are near.
    margin: None for least squares. Else the product shall lie in the interval that its word tells,
    and this share of an ulp from its ends; inertia is what a word counts that is content.
    """

    octaves: int
    margin: float | None = None
    inertia: float = 0.0


@dataclass(frozen=True)
class Product:
    """left (rows, rank) @ right (rank, columns), as the pair's floats."""

    left: Floats
    right: Floats

    @property
    def rank(self) -> int:
        return int(self.left.shape[1])


class Steps:
    """Half steps on a pair. is_rounded: products were rounded to 16 bits before they were added."""

    def __init__(self, pair: Pair, is_rounded: bool) -> None:
        self.pair, self.is_rounded = pair, is_rounded
        ulps, shares = pair.ulp_shares
        self._below_first = pair.words.bias + pair.words.mantissa_bits
        self.typical = int(np.rint(np.log2((shares * ulps**2).sum()) / 2)) + self._below_first

    def left(self, product: Product, rule: Rule) -> Product:
        """The product with the left factor that fits best."""
        columns = slice(None, None, self._stride(self.pair.columns, product.rank))
        right = np.ascontiguousarray(product.right[:, columns])
        given = np.ascontiguousarray(right.T, np.float32)
        pairs = _pairs(given)
        left = product.left.copy()
        for rows in self.pair.row_slices(right.shape[1]):
            weights, pulls = self._asked(rows, columns, left[rows] @ right, rule)
            left[rows] += _solved(weights @ pairs, pulls @ given)
        return Product(left, product.right)

    def right(self, product: Product, rule: Rule) -> Product:
        """The product with the right factor that fits best."""
        stride = self._stride(self.pair.rows, product.rank)
        n_pairs = product.rank * (product.rank + 1) // 2
        right = product.right.copy()
        width = max(1, _MOST_SUMS // n_pairs)
        for begin in range(0, self.pair.columns, width):
            columns = slice(begin, min(begin + width, self.pair.columns))
            n_columns = columns.stop - begin
            squares = np.zeros((n_columns, n_pairs), np.float32)
            targets = np.zeros((n_columns, product.rank), np.float32)
            for rows in self.pair.row_slices(n_columns, stride):
                left = product.left[rows]
                weights, pulls = self._asked(rows, columns, left @ right[:, columns], rule)
                given = left.astype(np.float32, copy=False)
                squares += weights.T @ _pairs(given)
                targets += pulls.T @ given
            right[:, columns] += _solved(squares, targets).T
        return Product(product.left, right)

    def noise(self, rule: Rule) -> float:
        """The root mean square that rounding leaves in what `rule` weighs."""
        ulps, shares = self.pair.ulp_shares
        finest = 2.0 ** (self.typical - self._below_first - rule.octaves)
        return float(1 / np.sqrt(12 * (shares / np.maximum(ulps, finest) ** 2).sum()))

    def error(self, product: Product, rule: Rule) -> float:
        """The mean square of what a product leaves, in ulps, of what rounding alone leaves."""
        rows = self.pair.sample()
        weights, pulls = self._asked(rows, slice(None), product.left[rows] @ product.right, rule)
        ulp = 2.0 ** (self.typical - self._below_first)
        return float((pulls.astype(np.float64) ** 2 / weights).mean()) * 12 / ulp**2

    def _stride(self, n: int, rank: int) -> int:
        """Every how many of n rows or columns are enough to look at."""
        work = self.pair.size * rank * (rank + 1) // 2
        return max(1, min(-(-work // _MOST_WORK), n // (8 * rank)))

    def _asked(
        self, rows: slice, columns: slice, products: Floats, rule: Rule
    ) -> tuple[Floats, Floats]:
        """Weights of the words, and how far their products should move, times the weights."""
        source = self.pair.source[rows, columns]
        exponents = self.pair.exponents(source)
        pulls = self.pair.differences(rows, columns)
        if rule.margin is None:
            pulls -= products
            if self.is_rounded:
                np.maximum(exponents, self._exponents_of(products), out=exponents)
            weights = self._weights(exponents, rule.octaves)
        else:
            halves = self._ulps(exponents)
            halves *= 0.5
            if self.is_rounded:
                pulls, halves = self._before_rounding(pulls, halves, source)
            pulls -= products
            margins = self._ulps(np.maximum(exponents, self.typical - rule.octaves))
            margins *= rule.margin
            halves -= margins
            np.maximum(halves, 0, out=halves)
            pulls -= np.clip(pulls, -halves, halves)
            weights = self._weights(exponents, rule.octaves)
            weights *= (pulls != 0) + np.float32(rule.inertia)
        pulls *= weights
        return weights, pulls.astype(np.float32, copy=False)

    def _weights(self, exponents: I32, octaves: int) -> Floats:
        """(typical ulp / ulp)^2, made as the bits of a float32."""
        bits = np.maximum(exponents, self.typical - octaves)
        bits *= -2
        bits += _BIAS + 2 * self.typical
        np.clip(bits, 1, 2 * _BIAS, out=bits)
        bits <<= _MANTISSA
        return bits.view(np.float32)

    def _ulps(self, exponents: I32) -> Floats:
        bits = exponents + np.int32(_BIAS - self._below_first)
        np.clip(bits, 1, 2 * _BIAS, out=bits)
        bits <<= _MANTISSA
        return bits.view(np.float32).astype(self.pair.real, copy=False)

    def _exponents_of(self, products: Floats) -> I32:
        """The exponent fields that products have in the pair's dtype."""
        bits = products.astype(np.float32, copy=False).view(np.int32) >> _MANTISSA
        bits &= 255
        bits += self.pair.words.bias - _BIAS
        return bits

    def _before_rounding(
        self, differences: Floats, halves: Floats, source: Words
    ) -> tuple[Floats, Floats]:
        """Middles and halves of the intervals that round to a difference that makes the word.

        Differences within half an ulp make it; at the very ends, ties, only where it is even. The
        least and the greatest of them that are numbers of 16 bits are looked for as integers.
        """
        dropped = _MANTISSA - self.pair.words.mantissa_bits
        is_odd = (source & source.dtype.type(1)).astype(np.int32)
        low = _counted((differences - halves).astype(np.float32, copy=False))
        low += is_odd
        low += (1 << dropped) - 1
        low &= -(1 << dropped)
        low -= 1 << (dropped - 1)
        high = _counted((differences + halves).astype(np.float32, copy=False))
        high -= is_odd
        high &= -(1 << dropped)
        high += 1 << (dropped - 1)
        lowest, highest = _uncounted(low), _uncounted(high)
        return (highest + lowest) / 2, (highest - lowest) / 2


def _counted(numbers: Floats) -> I32:
    """How many numbers each is from zero."""
    bits: I32 = numbers.view(np.int32)
    magnitudes = bits & np.int32(0x7FFFFFFF)
    return np.where(bits < 0, -magnitudes, magnitudes)


def _uncounted(counts: I32) -> Floats:
    bits = np.abs(counts)
    bits |= counts & np.int32(-(1 << 31))
    return bits.view(np.float32)


@cache
def _triangle(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(rank)


def _pairs(columns: Floats) -> Floats:
    """The products of all pairs of columns, each pair once."""
    first, second = _triangle(columns.shape[1])
    return columns[:, first] * columns[:, second]


def _solved(squares: Floats, targets: Floats) -> F64:
    """Each row's solution of its normal equations."""
    n, rank = targets.shape
    first, second = _triangle(rank)
    solved = np.empty((n, rank))
    for start in range(0, n, _SOLVED):
        rows = slice(start, start + _SOLVED)
        matrices = np.empty((len(targets[rows]), rank, rank))
        matrices[:, first, second] = matrices[:, second, first] = squares[rows]
        ridge = 1e-7 * np.einsum("ijj->i", matrices) / rank + 1e-300  # of sums of float32
        matrices[:, range(rank), range(rank)] += ridge[:, None]
        solved[rows] = np.linalg.solve(matrices, targets[rows, :, None].astype(np.float64))[..., 0]
    return solved
