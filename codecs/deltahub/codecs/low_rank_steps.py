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

from deltahub.codecs._native import ask, solve_normal_equations
from deltahub.codecs.low_rank_pair import F64, Floats, Pair

_F32: Final = np.dtype(np.float32)
_MOST_SUMS: Final = 1 << 21  # normal equations' numbers at a time
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
        given = right.astype(np.float32, copy=False)
        pairs = _pairs(given)
        left = product.left.copy()
        for rows in self.pair.row_slices(right.shape[1]):
            weights, pulls = self._asked(rows, columns, left[rows], right, rule)
            squares = self.pair.rooms.room("squares", (len(weights), len(pairs)), _F32)
            np.matmul(weights, pairs.T, out=squares)
            left[rows] += _solved(squares, pulls @ given.T)
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
            squares = self.pair.rooms.room("squares", (n_columns, n_pairs), _F32)
            squares[...] = 0
            more = self.pair.rooms.room("more squares", (n_columns, n_pairs), _F32)
            targets = np.zeros((n_columns, product.rank), np.float32)
            for rows in self.pair.row_slices(n_columns, stride):
                left = product.left[rows]
                weights, pulls = self._asked(rows, columns, left, right[:, columns], rule)
                given = np.ascontiguousarray(left.T, np.float32)
                squares += np.matmul(weights.T, _pairs(given).T, out=more)
                targets += pulls.T @ given.T
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
        weights, pulls = self._asked(rows, slice(None), product.left[rows], product.right, rule)
        ulp = 2.0 ** (self.typical - self._below_first)
        return float((pulls.astype(np.float64) ** 2 / weights).mean()) * 12 / ulp**2

    def _stride(self, n: int, rank: int) -> int:
        """Every how many of n rows or columns are enough to look at."""
        work = self.pair.size * rank * (rank + 1) // 2
        return max(1, min(-(-work // _MOST_WORK), n // (8 * rank)))

    def _asked(
        self, rows: slice, columns: slice, left: Floats, right: Floats, rule: Rule
    ) -> tuple[Floats, Floats]:
        """Weights of the words, and how far left @ right should move at each, times the weights.

        Both are arrays that the next call fills again.
        """
        source, base = self.pair.source[rows, columns], self.pair.base[rows, columns]
        if columns.step not in (None, 1):
            source, base = np.ascontiguousarray(source), np.ascontiguousarray(base)
        rooms, shape = self.pair.rooms, source.shape
        weights, pulls = (rooms.room(name, shape, _F32) for name in ("weights", "pulls"))
        products = rooms.room("products", shape, self.pair.real)
        np.matmul(left, right, out=products)
        ask(
            self.pair.kind,
            source,
            base,
            products,
            self.typical,
            rule.octaves,
            rule.margin,
            rule.inertia,
            self.is_rounded,
            weights,
            pulls,
        )
        return weights, pulls


@cache
def _triangle(rank: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(rank)


def _pairs(rows: Floats) -> Floats:
    """The products of all pairs of rows, each pair once."""
    first, second = _triangle(len(rows))
    pairs: Floats = rows[first]
    pairs *= rows[second]
    return pairs


def _solved(squares: Floats, targets: Floats) -> F64:
    """Each row's solution of its normal equations."""
    solutions = np.empty(targets.shape)
    solve_normal_equations(squares, targets, solutions)
    return solutions
