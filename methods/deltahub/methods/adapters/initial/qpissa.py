"""The factors of QPiSSA: they take up what quantization of the residual loses.

PiSSA, arXiv 2404.02948, section 4 and algorithm 1. The residual of each iteration is that of its
own factors, as in the authors' code; algorithm 1 as printed uses those of the iteration before.
"""

from dataclasses import dataclass

import numpy as np

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import (
    Weight,
    initial_factors,
    principal_spectrum,
    singular_values,
)
from deltahub.methods.quantization.nf4 import round_trip


@dataclass(frozen=True)
class QuantizationErrors:
    """Nuclear norms (sums of singular values) of what is lost.

    plain: of W - nf4(W), as QLoRA loads it. fitted: of W - (nf4(residual) + s B A), as it is loaded
    with this kit.
    """

    plain: float
    fitted: float

    @property
    def reduction(self) -> float:
        """The share of the plain error that is gone: the paper's reduction ratio, as a fraction."""
        return 1 - self.fitted / self.plain if self.plain else 0.0


@dataclass(frozen=True)
class QuantizedStart:
    """The factors, and the residual before it is quantized."""

    factors: Factors
    residual: Weight


def residual_of(weight: Weight, factors: Factors, scale: float) -> Weight:
    """W - s B A in single precision, from the factors as they are given."""
    product = factors.up.astype(np.float32) @ factors.down.astype(np.float32)
    return np.asarray(weight - np.float32(scale) * product, np.float32)


def quantized_start(
    weight: Weight, rank: int, scale: float, *, iters: int, iterations: int | None, seed: int = 0
) -> QuantizedStart:
    """Fit factors and quantized residual in turn, `iters` times; 1 is QPiSSA without iterations.

    iterations: of the decomposition, as in `principal_spectrum`.
    """

    def fit(target: Weight) -> Factors:
        found = principal_spectrum(target, rank, iterations=iterations, seed=seed)
        return initial_factors(found, rank, scale)

    factors = fit(weight)
    residual = residual_of(weight, factors, scale)
    for _ in range(iters - 1):
        factors = fit(weight - round_trip(residual))
        residual = residual_of(weight, factors, scale)
    return QuantizedStart(factors, residual)


def quantization_errors(weight: Weight, start: QuantizedStart, scale: float) -> QuantizationErrors:
    """How much of the weight is lost with and without the factors."""
    # What is loaded is the quantized residual and the factors: their difference to the weight is
    # that of the residual to its quantized form, if the factors are as given.
    loaded = residual_of(weight, start.factors, scale) - round_trip(start.residual)
    return QuantizationErrors(nuclear_norm(weight - round_trip(weight)), nuclear_norm(loaded))


def nuclear_norm(matrix: Weight) -> float:
    """The sum of the singular values."""
    return float(singular_values(matrix).sum())
