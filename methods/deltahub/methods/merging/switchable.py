"""Switchable merging: the base, and something small a task. Equations and sources: docs/methods/.

A function takes one task vector of one tensor as a float64 array of its shape, and returns what is
kept of it.
"""

import math

import numpy as np

from deltahub.methods.merging.static import Values, is_matrix


def bitdelta(vector: Values) -> Values:
    """The signs of a matrix, times the mean of its magnitudes; other tensors as they are."""
    if vector.ndim < 2:
        return vector
    return np.where(vector > 0, 1.0, -1.0) * float(np.abs(vector).mean())


def low_rank(vector: Values, rank: int) -> Values:
    """The best matrix of this rank, by its singular values; other tensors as they are."""
    if not is_matrix(vector) or rank >= min(vector.shape):
        return vector
    left, values, right = np.linalg.svd(vector, full_matrices=False)
    return np.asarray((left[:, :rank] * values[:rank]) @ right[:rank])


def rank_within(shape: tuple[int, ...], share: float) -> int:
    """The largest rank whose two factors have at most this share of a matrix's elements; >= 1."""
    rows, columns = shape[0], math.prod(shape[1:])
    return max(int(share * rows * columns / (rows + columns)), 1)
