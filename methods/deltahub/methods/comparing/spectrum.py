"""How many directions a difference needs: the effective rank, by randomized subspace iteration.

Halko, Martinsson, Tropp, "Finding Structure with Randomness: Probabilistic Algorithms for
Constructing Approximate Matrix Decompositions", SIAM Review 53 (2011), algorithms 4.4 and 5.1,
applied to D'D, so that one pass over the rows of D is one iteration.

The effective rank at a share p of the energy is the least r with
sigma_1^2 + ... + sigma_r^2 >= p ||D||_F^2. The squares are the eigenvalues of D'D within the
subspace (Rayleigh-Ritz), so they never exceed the true ones: a rank is never too small, apart from
rounding. The subspace has a bounded size, and a larger rank is told as such.
"""

from typing import Final

import numpy as np

from deltahub.methods.comparing.slices import Values

# The largest rank that is told apart, and the directions besides, which make it reliable.
RANK_LIMIT: Final = 128
OVERSAMPLING: Final = 8
# Numbers of the subspace: of a matrix with a million columns it gets fewer directions.
_MAX_NUMBERS: Final = 1 << 25
# Of eigenvalues that rounding has made a little smaller.
_SLACK: Final = 1e-9


class Spectrum:
    """The subspace of one difference, which `add` reads by rows, once for each iteration."""

    def __init__(self, rows: int, columns: int) -> None:
        n = min(RANK_LIMIT + OVERSAMPLING, rows, columns, max(_MAX_NUMBERS // columns, 1))
        # The same start gives the same ranks, also after a kill.
        self._directions: Values = np.random.default_rng(0).standard_normal((columns, n))
        self._image = np.zeros_like(self._directions)
        self._gram: Values = np.zeros((n, n))
        self.limit = min(RANK_LIMIT, n)

    def add(self, rows: Values) -> None:
        """Add whole rows of the difference to the iteration."""
        projected = rows @ self._directions
        self._image += rows.T @ projected
        self._gram += projected.T @ projected

    def turn(self) -> None:
        """End an iteration: the next one goes on with the images of the directions."""
        scale = float(np.abs(self._image).max(initial=0.0))
        self._directions, _ = np.linalg.qr(self._image / scale if scale > 0 else self._image)
        self._image = np.zeros_like(self._directions)
        self._gram = np.zeros_like(self._gram)

    def ranks(self, energy: float, shares: tuple[float, ...]) -> list[int | None]:
        """The effective rank for each share of the energy, ||D||_F^2; None if it is above limit.

        Precondition: the last iteration began with `turn`.
        """
        squares = np.sort(np.linalg.eigvalsh(self._gram))[::-1]
        reached = np.cumsum(np.maximum(squares, 0.0)) / energy
        found: list[int | None] = []
        for share in shares:
            rank = int(np.searchsorted(reached, share - _SLACK)) + 1
            found.append(rank if rank <= min(self.limit, len(reached)) else None)
        return found
