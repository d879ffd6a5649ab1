"""The part of two tensors that is in memory at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slice:
    """The same elements of both tensors, as matrices of doubles.

    row, column: of the first element in the tensor, seen as a matrix. n_same: elements that are
    identical in both, bit by bit.
    """

    row: int
    column: int
    first: Values
    second: Values
    n_same: int


Read = Callable[[], Iterable[Slice]]
"""Reads the tensors once, from their beginning. May be called again."""
