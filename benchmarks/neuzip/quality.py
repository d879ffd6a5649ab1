"""What a model loses with its matrices rounded, by each contender."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.neuzip.contenders import Contender, Matrices
from deltahub.codecs.dtypes import DType
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import choose

BITS: Final = "bits a weight"
ERROR: Final = "relative error"
KL: Final = "divergence"


@dataclass(frozen=True)
class Subject:
    """A BF16 model and how well it does.

    load: a new copy, in BF16. score: metric -> value, of which less is better; metric: the one to
    compare. noise: how much smaller it may be by chance of a model that lost more, as a share.
    three_bits: how far 3 bits may change it. outputs: log probabilities of some inputs, for the
    divergence from the plain model, which chance changes less than scores.
    """

    name: str
    title: str
    load: Callable[[], nn.Module]
    score: Callable[[nn.Module], Mapping[str, float]]
    metric: str
    noise: float
    three_bits: float
    outputs: Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Row:
    """One figure of a contender."""

    subject: str
    contender: str
    metric: str
    value: float


def matrices_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights that an export rounds: all matrices but embeddings and heads."""
    linear = {
        f"{name}.weight": each.weight.detach()
        for name, each in model.named_modules()
        if isinstance(each, nn.Linear)
    }
    shapes = {name: (DType.BF16.name, tuple(each.shape)) for name, each in linear.items()}
    asked = ExportNeuzipArguments.model_validate(
        {"model": "a/b", "name": "a/c", "bits": "auto", "budget": 6}
    )
    return {name: linear[name] for name in choose(shapes, asked, "the model").open}


def measure(subject: Subject, contenders: Sequence[Contender]) -> list[Row]:
    """The rows of all contenders. contenders: BF16 first, from which the others are measured.

    Weights are those that BF16 has; the model computes with them in F32, because what BF16 loses
    of activations is more than what 8 bits lose of weights.
    """
    model = subject.load()
    plain = {name: each.clone() for name, each in matrices_of(model).items()}
    model.float()
    n_elements = sum(each.numel() for each in plain.values())
    wanted: Tensor | None = None
    rows = []
    for each in contenders:
        rounded = each.round(plain)
        _fill(model, rounded.matrices)
        values = {
            BITS: 8 * rounded.size_bytes / n_elements,
            ERROR: relative_error(rounded.matrices, plain),
            **subject.score(model),
        }
        found = subject.outputs(model)
        wanted = found if wanted is None else wanted
        values[KL] = _divergence(wanted, found)
        rows += [Row(subject.name, each.name, metric, value) for metric, value in values.items()]
        told = ", ".join(f"{metric} {value:.6g}" for metric, value in values.items())
        print(f"{subject.name}, {each.name}: {told}", flush=True)
    return rows


def entropy_bits(matrices: Matrices) -> float:
    """Bits an element that a coder of single exponents needs: sign and mantissa, and the entropy
    of each matrix's exponents.
    """
    lost, count = 0.0, 0
    for weight in matrices.values():
        exponents = (weight.view(torch.int16).int() >> 7 & 255).flatten()
        counts = exponents.bincount().double()
        shares = counts[counts > 0] / weight.numel()
        lost += weight.numel() * float(8 - (shares * shares.log2()).sum())
        count += weight.numel()
    return lost / count


def relative_error(found: Matrices, wanted: Matrices) -> float:
    """Of all matrices together, Frobenius norm."""
    lost = sum(float((found[name].double() - each.double()).square().sum())
               for name, each in wanted.items())  # fmt: skip
    whole = sum(float(each.double().square().sum()) for each in wanted.values())
    return float((lost / whole) ** 0.5)


def _fill(model: nn.Module, matrices: Matrices) -> None:
    with torch.no_grad():
        for name, weight in matrices.items():
            model.get_parameter(name).copy_(weight)


def _divergence(wanted: Tensor, found: Tensor) -> float:
    """Mean Kullback-Leibler divergence of log probabilities, in nats."""
    return float((wanted.exp() * (wanted - found)).sum(-1).double().mean())
