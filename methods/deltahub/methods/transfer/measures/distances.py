"""How far two sets of texts are apart, by embeddings; and a sketch of one that can be stored.

Gretton et al., "A Kernel Two-Sample Test", JMLR 13, 2012: the maximum mean discrepancy. Rahimi and
Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007: for z(x) = sqrt(2/m) cos(W x +
b), with rows of W from N(0, 2 gamma I) and b uniform on [0, 2 pi), the mean of z(x) z(y) is
exp(-gamma |x - y|²). The mean of z over a set is a sketch of it: the distance of two sketches is
close to the discrepancy of their sets.
"""

import math
import random
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Values = npt.NDArray[np.float64]

N_FEATURES: Final = 512
DEFAULT_NOISE: Final = 0.005
# The length of z(x) is at most sqrt(2), because m squares of sqrt(2/m) cos are at most 2.
_LONGEST_FEATURE: Final = math.sqrt(2)


def median_gamma(embeddings: Values, most: int = 1_000) -> float:
    """gamma = 1 / (2 median²), of the distances between different rows; 1 if all are equal."""
    found = embeddings[:most]
    squares = _squared_distances(found, found)[np.triu_indices(len(found), 1)]
    median = float(np.median(squares)) if len(squares) else 0.0
    return 1 / (2 * median) if median > 0 else 1.0


def squared_mmd(first: Values, second: Values, gamma: float) -> float:
    """The squared discrepancy with the kernel exp(-gamma |x - y|²); 0 for equal sets.

    The biased estimate of the paper, equation 5, which is never negative.
    """

    def mean_kernel(one: Values, other: Values) -> float:
        return float(np.exp(-gamma * _squared_distances(one, other)).mean())

    own = mean_kernel(first, first) + mean_kernel(second, second)
    return max(own - 2 * mean_kernel(first, second), 0.0)


def rounded_gamma(gamma: float) -> float:
    """The nearest power of two, which the kits of one task mostly share: sketches of different
    gamma cannot be compared.
    """
    return 2.0 ** round(math.log2(gamma))


class Sketch(BaseModel):
    """The mean of random features of a private set, with Gaussian noise on each of them.

    It does not hold the set, but it is not free of it: `noise` says how much is added, and
    `sensitivity` how far one of the set's records can move the mean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(ge=1, description="Records of the set.")
    width: int = Field(ge=1, description="Numbers of an embedding.")
    seed: int = Field(ge=0, description="Of the features, which are the same for everybody.")
    gamma: float = Field(gt=0)
    noise: float = Field(ge=0, description="Standard deviation of the noise on each number.")
    values: tuple[float, ...] = Field(min_length=1)

    @property
    def sensitivity(self) -> float:
        """The farthest that the mean moves, in Euclidean distance, when one record is replaced."""
        return 2 * _LONGEST_FEATURE / self.n

    def epsilon(self, delta: float = 1e-5) -> float:
        """epsilon of (epsilon, delta)-differential privacy, by the Gaussian mechanism; infinite
        without noise.

        Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem 3.22,
        which holds for values up to 1. A larger one says that the noise gives no such guarantee.
        """
        if self.noise == 0:
            return math.inf
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / self.noise

    def squared_distance(self, embeddings: Values) -> float:
        """The squared discrepancy between the private set and another one, from the sketch alone.

        What the noise adds on the mean, m noise², is taken off, which leaves an estimate without
        bias of the distance of the two means. A negative one becomes 0: the estimate is then too
        large on the mean, for equal sets by 0.4 sqrt(2 m) noise², some 0.0003 with the defaults.
        Like every distance of two means it also holds about 1 / n of each set, even if both come
        from one distribution.
        """
        other = features(embeddings, self.gamma, self.seed, len(self.values)).mean(axis=0)
        square = float(((np.asarray(self.values) - other) ** 2).sum())
        return max(square - len(self.values) * self.noise**2, 0.0)

    def is_near(self, other: "Sketch") -> bool:
        """Whether both sets may well be samples of one distribution; False for sketches that cannot
        be compared.

        Then the squared distance of the means is at most 1/n + 1/n' on the mean, because features
        have the mean squared length 1, and the noise adds its own variance to it. Three standard
        deviations of the noise are allowed for, and nothing for how much samples differ, so that
        about one pair in twenty of one distribution is not near (27 of 600 pairs of 200 records).
        """
        if any(
            getattr(self, name) != getattr(other, name) for name in ("width", "seed", "gamma")
        ) or len(self.values) != len(other.values):
            return False
        m, variance = len(self.values), self.noise**2 + other.noise**2
        square = float(((np.asarray(self.values) - np.asarray(other.values)) ** 2).sum())
        allowed = 1 / self.n + 1 / other.n + 3 * math.sqrt(2 * m) * variance
        return square - m * variance <= allowed

    def comparison_error(self, squared_mmd_of_both: float) -> float:
        """How far the noise moves the difference of two squared distances, as a standard deviation:
        2 noise |mean - mean'|, because both have the same noise. squared_mmd_of_both: of the two
        sets whose distances from the private one are compared.
        """
        return 2 * self.noise * math.sqrt(max(squared_mmd_of_both, 0.0))


def features(embeddings: Values, gamma: float, seed: int, n: int = N_FEATURES) -> Values:
    """z(x) of each row: rows x n."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0.0, math.sqrt(2 * gamma), (embeddings.shape[1], n))
    shifts = rng.uniform(0, 2 * math.pi, n)
    return np.asarray(math.sqrt(2 / n) * np.cos(embeddings @ weights + shifts))


def sketch_of(
    embeddings: Values,
    gamma: float,
    *,
    seed: int = 0,
    noise: float = DEFAULT_NOISE,
    noise_source: np.random.Generator | None = None,
) -> Sketch:
    """The sketch of a private set.

    gamma must come from other texts than the private ones, because nothing hides it. The noise
    comes from the operating system: if a stored seed made it, anybody could take it off again.
    noise_source: for tests. The guarantee of `epsilon` is for this mean alone, with an n that
    anybody may know: neither for the seeds, which are stored as they are, nor for a discriminator.
    """
    mean = features(embeddings, gamma, seed).mean(axis=0)
    system = random.SystemRandom()
    drawn = (
        noise_source.normal(0.0, noise, len(mean))
        if noise_source is not None
        else np.array([system.gauss(0.0, noise) for _ in mean])
    )
    noisy = mean + drawn if noise else mean
    return Sketch(
        n=len(embeddings),
        width=embeddings.shape[1],
        seed=seed,
        gamma=gamma,
        noise=noise,
        values=_rounded(noisy),
    )


def _rounded(values: Values) -> tuple[float, ...]:
    shown: Sequence[float] = np.round(values, 6).tolist()
    return tuple(shown)


def _squared_distances(first: Values, second: Values) -> Values:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None] - 2 * first @ second.T
    return np.asarray(np.maximum(squares, 0.0))
