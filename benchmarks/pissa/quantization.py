"""What NF4 loses of a weight: alone (QLoRA), and with the factors of LoftQ and of QPiSSA.

LoftQ: Li et al., "LoftQ: LoRA-Fine-Tuning-Aware Quantization for Large Language Models", ICLR 2024,
arXiv 2310.08659, equations 8 and 9 and algorithm 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import (
    Weight,
    initial_factors,
    principal_spectrum,
)
from deltahub.methods.adapters.initial.qpissa import (
    nuclear_norm,
    quantization_errors,
    quantized_start,
    residual_of,
)
from deltahub.methods.quantization.nf4 import round_trip

# In the order in which the paper's table 8 has their reductions on average, the smallest first.
METHODS = ("QLoRA", "LoftQ-1", "PiSSA-1", "LoftQ-5", "PiSSA-5")


@dataclass(frozen=True)
class Row:
    """error: nuclear norm of the difference between the weight and what is loaded. reduction: the
    share of QLoRA's error that is gone.
    """

    seed: int
    tensor: str
    rank: int
    method: str
    error: float
    reduction: float


def measure(seed: int, weights: Mapping[str, Weight], rank: int) -> list[Row]:
    rows = []
    for tensor, weight in weights.items():
        errors = _errors(weight, rank)
        for method in METHODS:
            reduction = 1 - errors[method] / errors["QLoRA"]
            rows.append(Row(seed, tensor, rank, method, errors[method], reduction))
    return rows


def _errors(weight: Weight, rank: int) -> dict[str, float]:
    errors = {"QLoRA": nuclear_norm(weight - round_trip(weight))}
    for iters in (1, 5):
        start = quantized_start(weight, rank, 1.0, iters=iters, iterations=None)
        errors[f"PiSSA-{iters}"] = quantization_errors(weight, start, 1.0).fitted
        loaded, factors = loftq(weight, rank, iters)
        errors[f"LoftQ-{iters}"] = nuclear_norm(residual_of(weight, factors, 1.0) - loaded)
    return errors


def loftq(weight: Weight, rank: int, iters: int) -> tuple[Weight, Factors]:
    """(the quantized weight Q, the factors), fitted in turn, `iters` times.

    From A B = 0: Q = q(W - A B), and A B = the part of W - Q of this rank. Unlike QPiSSA, Q comes
    first, and the principal part of the weight is quantized with it.
    """
    residual = weight
    for _ in range(iters):
        loaded = round_trip(residual)
        spectrum = principal_spectrum(weight - loaded, rank, iterations=None)
        factors = initial_factors(spectrum, rank, 1.0)
        residual = residual_of(weight, factors, 1.0)
    return loaded, factors
