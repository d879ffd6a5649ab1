"""The strongest directions of the difference of two tensors, from random projections of it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from deltahub.codecs._native import whiten
from deltahub.codecs.fm_delta.low_rank.tensor_pair import F64, Floats, Pair

_PART: Final = 1 << 22  # elements, at most, that a step looks at
_FEW: Final = 1 << 15  # random numbers, at most, that are kept: models have layers alike
_NOTHING: Final = 1e-60  # a sum of squares that has no digits left
_FAINT: Final = 1e-3  # of all squares: what is left of a product that was rounded, or less
_NOISE: Final = 1.5  # times the strongest direction that noise has: more is no noise


@dataclass(frozen=True)
class Factors:
    """left * strengths @ right: orthonormal columns and rows, strengths falling."""

    left: Floats
    strengths: F64
    right: Floats

    def first(self, rank: int) -> "Factors":
        """The strongest components."""
        return Factors(self.left[:, :rank], self.strengths[:rank], self.right[:rank])

    @classmethod
    def of_product(cls, left: Floats, right: Floats) -> "Factors":
        """left @ right, of any columns and rows."""
        columns = orthonormal(left)
        return cls.of_orthonormal(columns, (columns.T @ left) @ right)

    @classmethod
    def of_orthonormal(cls, columns: Floats, core: Floats) -> "Factors":
        """columns @ core, of orthonormal columns."""
        return cls.of_turned(columns, np.eye(len(core), dtype=core.dtype), core)

    @classmethod
    def of_turned(cls, columns: Floats, turn: Floats, core: Floats) -> "Factors":
        """columns @ turn @ core, of orthonormal columns @ turn."""
        exact = core.astype(np.float64, copy=False)
        squares, axes = np.linalg.eigh(exact @ exact.T)
        squares, axes = np.maximum(squares, max(1e-20 * squares[-1], 1e-300))[::-1], axes[:, ::-1]
        strengths = np.sqrt(squares)
        along = (turn.astype(np.float64, copy=False) @ axes).astype(core.dtype)
        return cls(columns @ along, strengths, (axes / strengths).T.astype(core.dtype) @ core)


def sketch(
    pair: Pair, n_directions: int, n_powers: int, most: int = 0
) -> tuple[Factors, float] | None:
    """The strongest directions of the difference, and its sum of squares.

    None where the strongest is not more than noise has. The row space is found on parts of the
    rows, other ones in each step; then all rows are looked at. n_directions: at most half of the
    rows and of the columns. most: how many they are where more than n_directions stand out.
    """
    f32 = np.dtype(np.float32)
    least = -(-pair.size // _PART)
    coarsest = max(least, pair.rows // (2 * n_directions))
    basis: Floats | None = None
    looked: Floats
    for i in range(n_powers + 1):
        step = min(max(16 >> i, least, 1), coarsest)
        part = pair.differences(slice(i % step, None, step), real=f32)
        if basis is None:
            looked = _random(len(part), n_directions)
        else:
            looked = part @ basis
            if i == 1 and _is_noise(part, looked):
                return None
            if i == n_powers and most > n_directions and _is_cut(pair, part, looked):
                return sketch(pair, most, n_powers)
        basis = orthonormal(part.T @ looked)
    assert basis is not None
    factors, energy = _along(pair, basis)
    # Float32 tells no more of what is left than this: of F32 words that an adapter was merged into.
    if pair.real != f32 and energy - float((factors.strengths**2).sum()) < _FAINT * energy:
        return _along(pair, basis.astype(pair.real))
    return factors, energy


def _random(rows: int, columns: int) -> Floats:
    """The same numbers for the same shape."""
    return (_few_random if rows * columns <= _FEW else _any_random)(rows, columns)


def _any_random(rows: int, columns: int) -> Floats:
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


_few_random = lru_cache(maxsize=16)(_any_random)


def _along(pair: Pair, basis: Floats) -> tuple[Factors, float]:
    """The difference's part in the span of difference @ basis, and its sum of squares.

    All rows are looked at once: nothing is made orthonormal before all are known.
    """
    n_directions = basis.shape[1]
    left = np.empty((pair.rows, n_directions), basis.dtype)
    right = np.zeros((n_directions, pair.columns), basis.dtype)
    more = np.empty_like(right)
    squares = np.zeros((n_directions, n_directions))
    energy = 0.0
    for rows, difference in pair.chunks(basis.dtype):
        looked = np.matmul(difference, basis, out=left[rows])
        right += np.matmul(looked.T, difference, out=more)
        exact = looked.astype(np.float64, copy=False)
        squares += exact.T @ exact
        energy += float(np.vdot(difference, difference))
    turn = whitening(squares, basis.dtype)
    core = turn.T @ right  # of left @ turn, which is orthonormal
    return Factors.of_turned(left, turn, core), energy


def _is_cut(pair: Pair, part: Floats, along: Floats) -> bool:
    """Whether weaker directions than those of `along`, part @ directions, would still tell much."""
    energy = float(np.vdot(part, part))
    squares = (along.T @ along).astype(np.float64)
    if energy - float(squares.trace()) > energy / 80:
        return False
    # Whether all eigenvalues are greater than a bound: much faster than the least of them.
    squares[np.diag_indices_from(squares)] -= (2 * pair.noise_strength(len(part))) ** 2
    try:
        np.linalg.cholesky(squares)
    except np.linalg.LinAlgError:
        return False
    return True


def _is_noise(part: Floats, along: Floats) -> bool:
    """Whether no direction of a part is stronger than noise has it. along: part @ directions."""
    rows, columns = part.shape
    energy = float(np.vdot(part, part))
    strongest = _greatest(along.T @ along)
    edge = (np.sqrt(rows) + np.sqrt(columns)) ** 2
    return bool(strongest * rows * columns <= _NOISE * edge * (energy - strongest))


def _greatest(squares: Floats) -> float:
    """The greatest eigenvalue of a matrix of products, or a little less."""
    along = squares[np.argmax(squares.diagonal())].astype(np.float64)
    value = 0.0
    for _ in range(4):
        length = float(np.linalg.norm(along))
        if length == 0:
            return 0.0
        along = squares @ (along / length)
        value = float(np.linalg.norm(along))
    return value


def orthonormal(columns: Floats) -> Floats:
    """An orthonormal basis of the columns; all is 0 where their squares have no digits left.

    What is weaker than the last digits of the strongest's square is noise, and stays less than of
    length 1. Many times faster than a QR.
    """
    exact = columns.astype(np.float64, copy=False)
    squares = exact.T @ exact
    if not squares.trace() > _NOTHING:
        return np.zeros_like(columns)
    basis: Floats = columns @ whitening(squares, columns.dtype)
    return basis


def whitening(squares: F64, real: np.dtype[Any]) -> Floats:
    """What makes columns with these products orthonormal; 0 where they are nothing.

    squares is changed.
    """
    if not squares.trace() > _NOTHING:
        return np.zeros(squares.shape, real)
    if real == np.float64:
        lengths, turn = np.linalg.eigh(squares)
        whole: F64 = turn / np.sqrt(np.maximum(lengths, 1e-14 * lengths[-1]))
        return whole
    few = np.empty(squares.shape, np.float32)
    whiten(squares, few)  # a ridge is less than what float32 rounds, and all is much faster
    return few
