"""Sharpens the factors of a difference that is of low rank but for the rounding of its words.

A merged adapter is such a difference. A word tells its product as exactly as the word itself is
fine, so the small ones tell most: the factors are fitted again by alternating least squares, with
weights of 1 / (rounding error)^2.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.low_rank_pair import F64, Factors, Floats, Pair, orthonormal

# Ulps below these shares of the typical one count no more. Too low a share from the start, and a
# few fine words would rule before the factors are near.
_SHARES: Final[tuple[float, ...]] = (0.25, 0.06, 0.03, 0.015)
_SHARES_MAX: Final = (0.25, 0.06, 0.03, 0.015, 0.015, 0.008, 0.008, 0.004)
_SHARES_F32: Final = (0.25, 0.25)  # merging in F32 rounds products too, about so much


def sharpened(pair: Pair, factors: Factors, rank: int, is_thorough: bool) -> Factors:
    """The strongest `rank` components, fitted again."""
    shares = _SHARES_MAX if is_thorough else _SHARES
    if pair.dtype is DType.F32:
        shares = _SHARES_F32
    step = max(1, pair.rows // (8192 if is_thorough else 2048))
    part = pair.part(slice(None, None, step))
    right: Floats = factors.right[:rank]
    for share in shares:
        left = orthonormal(_left(part, right, share))
        right = _right(part, left, share)
        right = orthonormal(right.T).T
    return Factors.of_product(_left(pair, right, shares[-1]), right.astype(np.float64))


def _weights(pair: Pair, share: float) -> Callable[[slice], Floats]:
    ulps, shares = pair.ulp_shares()
    typical = np.sqrt((shares * ulps**2).sum())
    return lambda rows: 1 / ((pair.ulps(rows) / typical) ** 2 + pair.real.type(share**2))


def _left(pair: Pair, right: Floats, share: float) -> F64:
    """The left factor that fits best given the right one."""
    weights, given = _weights(pair, share), right.astype(pair.real)
    pairs = _pairs(given.T)
    left = np.empty((pair.rows, len(right)))
    for rows, difference in pair.chunks():
        weight = weights(rows)
        left[rows] = _solved(weight @ pairs, (weight * difference) @ given.T)
    return left


def _right(pair: Pair, left: Floats, share: float) -> Floats:
    """The right factor that fits best given the left one."""
    weights, given = _weights(pair, share), left.astype(pair.real)
    rank = left.shape[1]
    squares = np.zeros((pair.columns, rank * (rank + 1) // 2), pair.real)
    targets = np.zeros((pair.columns, rank), pair.real)
    for rows, difference in pair.chunks():
        weight = weights(rows)
        squares += weight.T @ _pairs(given[rows])
        targets += (weight * difference).T @ given[rows]
    return _solved(squares, targets).T


def _pairs(columns: Floats) -> Floats:
    """The products of all pairs of columns, each pair once."""
    first, second = np.triu_indices(columns.shape[1])
    return columns[:, first] * columns[:, second]


def _solved(squares: Floats, targets: Floats) -> Floats:
    """Each row's solution of its normal equations."""
    rank = targets.shape[1]
    first, second = np.triu_indices(rank)
    matrices = np.empty((len(targets), rank, rank))
    matrices[:, first, second] = matrices[:, second, first] = squares
    ridge = 1e-12 * np.einsum("ijj->i", matrices) / rank + 1e-300
    matrices += ridge[:, None, None] * np.eye(rank)
    solved: Floats = np.linalg.solve(matrices, targets[:, :, None].astype(np.float64))[:, :, 0]
    return solved
