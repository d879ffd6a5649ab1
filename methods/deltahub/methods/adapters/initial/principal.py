"""The principal part of a weight, as the factors that PiSSA starts from.

Meng et al., "PiSSA: Principal Singular Values and Singular Vectors Adaptation of Large Language
Models", NeurIPS 2024, arXiv 2404.02948, equations 2 and 3, in the convention of PEFT, which
multiplies B A by s = alpha / r: with W = U S V^T, A = sqrt(S_r / s) V_r^T, B = U_r sqrt(S_r / s).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.adapters.factors import Factors, Spectrum, Values
from deltahub.methods.errors import CannotAdapt

Weight = npt.NDArray[np.float32]
"""outputs x inputs"""

# Columns of the sketch above the rank: Halko et al., arXiv 0909.4061, section 4.3.
OVERSAMPLING: Final = 10
# Rows of a weight that are doubles at once.
_BLOCK_ROWS: Final = 1024


def initial_factors(spectrum: Spectrum, rank: int, scale: float) -> Factors:
    """A and B of the principal part of this rank, so that scale * B A is that part."""
    roots = np.sqrt(spectrum.values[:rank] / scale)
    return Factors(roots[:, None] * spectrum.right[:rank], spectrum.left[:, :rank] * roots)


def principal_spectrum(
    weight: Weight, rank: int, *, iterations: int | None, seed: int = 0
) -> Spectrum:
    """The `rank` largest singular values of a weight with their vectors.

    iterations: of the randomized method, each of which reads the weight twice; None for the exact
    decomposition, by the eigenvalues of W W^T or W^T W in double precision. The largest element of
    each left vector is positive, so that the same weight gives the same factors. CannotAdapt if the
    rank is not below both sides of the weight.
    """
    if not 1 <= rank <= min(weight.shape):
        raise CannotAdapt(
            f"rank {rank} does not fit to a weight of {weight.shape[0]} x {weight.shape[1]}: choose"
            f" 1 to {min(weight.shape)}"
        )
    if iterations is None:
        found = _exact(weight, rank)
    else:
        found = _randomized(weight, rank, iterations, seed)
    return _with_fixed_signs(found)


def _randomized(weight: Weight, rank: int, iterations: int, seed: int) -> Spectrum:
    """Halko, Martinsson and Tropp, arXiv 0909.4061, algorithms 4.4 and 5.1."""
    columns = min(rank + OVERSAMPLING, *weight.shape)
    random = np.random.default_rng(seed)
    sketch = random.standard_normal((weight.shape[1], columns), dtype=np.float32)
    basis = np.linalg.qr(weight @ sketch)[0]
    for _ in range(iterations):
        # Without a QR at each half step, small singular directions drown in rounding.
        across = np.linalg.qr(weight.T @ basis)[0]
        basis = np.linalg.qr(weight @ across)[0]
    inside = (basis.T @ weight).astype(np.float64)
    left, values, right = np.linalg.svd(inside, full_matrices=False)
    return Spectrum(basis @ left[:, :rank], values[:rank], right[:rank])


def _exact(weight: Weight, rank: int) -> Spectrum:
    is_wide = weight.shape[1] >= weight.shape[0]
    rows = weight if is_wide else weight.T
    squares, vectors = np.linalg.eigh(gram(rows))
    own = vectors[:, ::-1][:, :rank].copy()
    values = np.sqrt(np.maximum(squares[::-1][:rank], 0))
    del vectors
    others = np.zeros((rows.shape[1], rank))
    for first in range(0, rows.shape[0], _BLOCK_ROWS):
        block = rows[first : first + _BLOCK_ROWS].astype(np.float64)
        others += block.T @ own[first : first + _BLOCK_ROWS]
    # A direction that the weight maps to zero has no partner, and adds nothing to any product.
    others = np.divide(others, values, out=np.zeros_like(others), where=values > 0)
    return Spectrum(own, values, others.T) if is_wide else Spectrum(others, values, own.T)


def singular_values(matrix: Weight) -> Values:
    """All singular values, the largest first, by the eigenvalues of the smaller Gram matrix."""
    rows = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(gram(rows))[::-1], 0)))


def gram(rows: Weight) -> npt.NDArray[np.float64]:
    """rows @ rows.T in doubles, of which only some columns of `rows` are doubles at once."""
    total = np.zeros((rows.shape[0], rows.shape[0]))
    for first in range(0, rows.shape[1], _BLOCK_ROWS):
        block = rows[:, first : first + _BLOCK_ROWS].astype(np.float64)
        total += block @ block.T
    return total


def _with_fixed_signs(found: Spectrum) -> Spectrum:
    largest = np.abs(found.left).argmax(axis=0)
    signs = np.where(found.left[largest, np.arange(len(largest))] < 0, -1.0, 1.0)
    return Spectrum(found.left * signs, found.values, signs[:, None] * found.right)
