"""The two factors of a low-rank update, and arithmetic with them.

An adapter adds s B A to a weight. A ("down") is rank x inputs, B ("up") is outputs x rank.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Factors:
    """down: A, rank x inputs. up: B, outputs x rank. The update is up @ down."""

    down: Values
    up: Values

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the update."""
        return int(self.up.shape[0]), int(self.down.shape[1])

    @property
    def norm(self) -> float:
        """The Frobenius norm of the update: that of the cores of both QR decompositions."""
        left, right = np.linalg.qr(self.up)[1], np.linalg.qr(self.down.T)[1]
        return float(np.linalg.norm(left @ right.T))

    def inner(self, other: "Factors") -> float:
        """The sum of products of the elements of two updates of one shape."""
        return float(((self.up.T @ other.up) * (self.down @ other.down.T)).sum())

    def cosine(self, other: "Factors") -> float:
        """The cosine of the angle between two updates of one shape; 0 if one is zero."""
        norms = self.norm * other.norm
        return self.inner(other) / norms if norms else 0.0

    def scaled(self, factor: float) -> "Factors":
        """The factors of the update times a factor, which B takes."""
        return self if factor == 1 else Factors(self.down, self.up * factor)

    def padded(self, rank: int) -> "Factors":
        """The same update with zeros up to a larger rank."""
        more = rank - self.rank
        return Factors(np.pad(self.down, ((0, more), (0, 0))), np.pad(self.up, ((0, 0), (0, more))))


@dataclass(frozen=True)
class Spectrum:
    """An update as its singular value decomposition, left @ diag(values) @ right.

    left: outputs x n, values: n, the largest first, right: n x inputs.
    """

    left: Values
    values: Values
    right: Values

    def rank_for(self, error: float) -> int:
        """The smallest rank, 1 or more, whose relative Frobenius error is at most `error`."""
        return int(np.argmax(self.errors() <= error)) or 1

    def errors(self) -> Values:
        """The relative Frobenius error of each rank 0, 1, ..., n (Eckart and Young, 1936).

        It is sqrt(sum of the squared values that are left out, over the sum of all).
        """
        squares = self.values**2
        left_out = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
        return np.asarray(np.sqrt(left_out / left_out[0])) if left_out[0] else left_out

    def truncated(self, rank: int) -> Factors:
        """The best factors of this rank; of a higher rank than n, with zeros.

        Both factors take the square root of the values, so that neither loses more than the other
        when they are stored in a dtype of few bits.
        """
        roots = np.sqrt(self.values[:rank])
        found = Factors(roots[:, None] * self.right[:rank], self.left[:, :rank] * roots)
        return found.padded(rank) if found.rank < rank else found


def difference(trained: Factors, initial: Factors) -> Factors:
    """The factors of B A - B0 A0, exactly: [B, -B0] and [A; A0], of the sum of both ranks.

    PiSSA, arXiv 2404.02948, appendix C. Nothing is rounded.
    """
    return Factors(
        np.concatenate([trained.down, initial.down]),
        np.concatenate([trained.up, -initial.up], axis=1),
    )


def spectrum_of(factors: Factors) -> Spectrum:
    """The singular value decomposition of up @ down, without making the product.

    Both factors are reduced by QR, and their small core, rank x rank, is decomposed.
    """
    left, left_core = np.linalg.qr(factors.up)
    right, right_core = np.linalg.qr(factors.down.T)
    inner_left, values, inner_right = np.linalg.svd(left_core @ right_core.T)
    n = len(values)
    return Spectrum(left @ inner_left[:, :n], values, inner_right[:n] @ right.T)
