"""Half steps of a fit: one thin factor of a product anew, given the other.

A word tells its product as exactly as the word itself is fine, so the small ones tell most. Two
rules say what words ask of their products: to be near the difference (least squares), or to lie
where rounding makes the word (intervals). The second is sharper, for products that are near.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from deltahub.codecs._native import ask, half_step
from deltahub.codecs.fm_delta.low_rank.prediction import Words
from deltahub.codecs.fm_delta.low_rank.tensor_pair import F64, Floats, Pair

_MOST_WORK: Final = 1 << 31  # words times pairs of components that a half step looks at


@dataclass(frozen=True)
class Rule:
    """What words ask of their products.

    octaves: words finer than 2^-octaves of the typical one count as if they were as coarse. Too
    fine ones from the start, and a few words would rule before the factors are near.
    margin: None for least squares. Else the product shall lie in the interval that its word tells,
    and this share of an ulp from its ends; inertia is what a word counts that is content.
    further: how many times as far a factor moves as it is asked to.
    """

    octaves: int
    margin: float | None = None
    inertia: float = 0.0
    further: float = 1.0


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
        source, base = self.pair.source[:, columns], self.pair.base[:, columns]
        moves = self._moves(source, base, product.left, product.right[:, columns], rule)
        return Product((product.left + moves).astype(product.left.dtype), product.right)

    def right(self, product: Product, rule: Rule) -> Product:
        """The product with the right factor that fits best."""
        rows = slice(None, None, self._stride(self.pair.rows, product.rank))
        source, base = self.pair.source[rows].T, self.pair.base[rows].T
        moves = self._moves(source, base, product.right.T, product.left[rows].T, rule)
        return Product(product.left, (product.right + moves.T).astype(product.right.dtype))

    def noise(self, rule: Rule) -> float:
        """The root mean square that rounding leaves in what `rule` weighs."""
        ulps, shares = self.pair.ulp_shares
        finest = 2.0 ** (self.typical - self._below_first - rule.octaves)
        return float(1 / np.sqrt(12 * (shares / np.maximum(ulps, finest) ** 2).sum()))

    def error(self, product: Product, rule: Rule) -> float:
        """The mean square of what a product leaves, in ulps, of what rounding alone leaves."""
        rows = self.pair.sample()
        products = product.left[rows] @ product.right
        weights, pulls = np.empty((2, *products.shape), np.float32)
        ask(
            self.pair.kind,
            self.pair.source[rows],
            self.pair.base[rows],
            products,
            self.typical,
            rule.octaves,
            rule.margin,
            rule.inertia,
            self.is_rounded,
            weights,
            pulls,
        )
        ulp = 2.0 ** (self.typical - self._below_first)
        return float((pulls.astype(np.float64) ** 2 / weights).mean()) * 12 / ulp**2

    def _stride(self, n: int, rank: int) -> int:
        """Every how many of n rows or columns are enough to look at."""
        work = self.pair.size * rank * (rank + 1) // 2
        return max(1, min(-(-work // _MOST_WORK), n // (8 * rank)))

    def _moves(self, source: Words, base: Words, own: Floats, given: Floats, rule: Rule) -> F64:
        """How own should move, so that own @ given is what the words ask for."""
        moves = np.empty(own.shape)
        half_step(
            self.pair.kind,
            source,
            base,
            np.ascontiguousarray(own),
            np.ascontiguousarray(given),
            self.typical,
            rule.octaves,
            rule.margin,
            rule.inertia,
            self.is_rounded,
            moves,
        )
        moves *= rule.further
        return moves
