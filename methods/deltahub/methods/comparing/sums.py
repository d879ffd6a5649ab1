"""Sums over the elements of two tensors, a slice at a time."""

import math
from dataclasses import dataclass

import numpy as np

from deltahub.methods.comparing.slices import Values


@dataclass
class Sums:
    """What is known of the slices so far. Elements that are infinite or NaN are only counted.

    mean, squares: of the difference, and the sum of squares of its distance from the mean. Chan,
    Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
    1979: slices are joined without the cancellation of sums of squares.
    """

    n: int = 0
    n_same: int = 0
    n_odd: int = 0
    first2: float = 0.0
    second2: float = 0.0
    product: float = 0.0
    difference2: float = 0.0
    largest: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, first: Values, second: Values, n_same: int) -> Values:
        """Count a slice; its difference, with zeros where an element is infinite or NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            difference: Values = second - first
        is_finite = np.isfinite(difference)
        n_odd = first.size - int(np.count_nonzero(is_finite))
        if n_odd:
            first, second = np.where(is_finite, first, 0.0), np.where(is_finite, second, 0.0)
            difference = np.where(is_finite, difference, 0.0)
        self.n_odd += n_odd
        self.n_same += n_same
        self.first2 += _dot(first, first)
        self.second2 += _dot(second, second)
        self.product += _dot(first, second)
        self.difference2 += _dot(difference, difference)
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0.0)))
        self._join(difference)
        return difference

    def _join(self, difference: Values) -> None:
        n = difference.size
        if not n:
            return
        mean = float(difference.mean())
        away = difference - mean
        apart = mean - self.mean
        both = self.n + n
        self.squares += _dot(away, away) + apart * apart * self.n * n / both
        self.mean += apart * n / both
        self.n = both

    @property
    def relative(self) -> float | None:
        """||B - A|| / ||A||; None if A is zero and B is not."""
        if self.difference2 == 0:
            return 0.0
        return math.sqrt(self.difference2 / self.first2) if self.first2 > 0 else None

    @property
    def cosine(self) -> float | None:
        """Of the angle between A and B; None if one of them is zero."""
        norms = math.sqrt(self.first2) * math.sqrt(self.second2)
        return max(-1.0, min(1.0, self.product / norms)) if norms > 0 else None

    @property
    def deviation(self) -> float:
        """The standard deviation of the difference."""
        return math.sqrt(self.squares / self.n) if self.n else 0.0


def _dot(left: Values, right: Values) -> float:
    return float(np.dot(left.ravel(), right.ravel()))
