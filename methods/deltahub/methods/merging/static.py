"""Static merging: one checkpoint of many fine-tunes. The equations and sources: docs/methods/.

A function takes the task vectors tau_t of one tensor as float64 arrays of its shape, and returns
the merged one, to be multiplied by the merge's scale and added to the base.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def average(vectors: Sequence[Values], density: float) -> Values:
    """The mean of all task vectors, so that the result is the mean of the models."""
    return _total(vectors) / len(vectors)


def task_arithmetic(vectors: Sequence[Values], density: float) -> Values:
    """The sum of all task vectors."""
    return _total(vectors)


def ties(vectors: Sequence[Values], density: float) -> Values:
    """Trim, elect a sign, and average those that agree with it.

    density: the share of elements of each task vector that are kept, the largest ones.
    """
    trimmed = [_largest(vector, density) for vector in vectors]
    sign = np.where(_total(trimmed) >= 0, 1.0, -1.0)
    total, n_agree = np.zeros_like(sign), np.zeros_like(sign)
    for vector in trimmed:
        agrees = vector * sign > 0
        total += np.where(agrees, vector, 0.0)
        n_agree += agrees
    return np.asarray(total / np.maximum(n_agree, 1.0))


def iso_c(vectors: Sequence[Values], density: float) -> Values:
    """The sum, with all singular values of a matrix replaced by their mean; else the average."""
    if not is_matrix(vectors[0]):
        return average(vectors, density)
    left, values, right = np.linalg.svd(_total(vectors), full_matrices=False)
    return np.asarray(values.mean() * (left @ right))


def tsv_m(vectors: Sequence[Values], density: float) -> Values:
    """The leading singular vectors of all tasks, made orthogonal to each other; else the average.

    Of a matrix with r singular values each of T tasks has r / T, at least one.
    """
    if not is_matrix(vectors[0]):
        return average(vectors, density)
    rank = max(min(vectors[0].shape) // len(vectors), 1)
    parts = [np.linalg.svd(vector, full_matrices=False) for vector in vectors]
    left = np.concatenate([u[:, :rank] for u, _, _ in parts], axis=1)
    values = np.concatenate([s[:rank] for _, s, _ in parts])
    right = np.concatenate([v[:rank] for _, _, v in parts])
    return np.asarray((_orthogonal(left) * values) @ _orthogonal(right))


Merge = Callable[[Sequence[Values], float], Values]

STATIC: Final[dict[str, Merge]] = {
    "average": average,
    "task-arithmetic": task_arithmetic,
    "ties": ties,
    "iso-c": iso_c,
    "tsv-m": tsv_m,
}
# The scale that the methods' papers use where nothing is tuned.
DEFAULT_SCALES: Final = {
    "average": 1.0,
    "task-arithmetic": 0.3,
    "ties": 1.0,
    "iso-c": 1.0,
    "tsv-m": 1.0,
}
# These take any part of a tensor alone, so that its size does not matter.
ELEMENTWISE: Final = frozenset({"average", "task-arithmetic"})


def is_matrix(vector: Values) -> bool:
    """Whether singular values say something: two dimensions, each above one."""
    return vector.ndim == 2 and min(vector.shape) > 1


def _total(vectors: Sequence[Values]) -> Values:
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total


def _largest(vector: Values, density: float) -> Values:
    """The vector, with all but its largest magnitudes set to zero; ties are kept."""
    keep = max(round(density * vector.size), 1)
    magnitudes = np.abs(vector).ravel()
    threshold = np.partition(magnitudes, vector.size - keep)[vector.size - keep]
    return np.where(np.abs(vector) >= threshold, vector, 0.0)


def _orthogonal(matrix: Values) -> Values:
    """The nearest matrix with orthonormal columns or rows (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(left @ right)
