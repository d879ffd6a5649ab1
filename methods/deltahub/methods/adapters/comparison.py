"""How alike two adapters are: cosines of their updates, and the directions that they share."""

from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.factors import Factors, Values, spectrum_of

# Directions below this share of the largest one are none of the update's own.
_FLAT = 1e-6


class ModuleComparison(BaseModel):
    """Two updates of one module. Both overlaps are 0 to 1: of the smaller space, how much lies in
    the other one; for random directions about rank / size.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: str
    cosine: float = Field(description="Of the angle between both updates, as vectors.")
    input_overlap: float = Field(description="Of the directions of inputs that they read.")
    output_overlap: float = Field(description="Of the directions of outputs that they write.")
    norm_ratio: float | None = Field(description="Of the second update to the first.")


class AdapterComparison(BaseModel):
    """Two adapters of one base."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: str
    second: str
    cosine: float = Field(description="Of all updates together.")
    modules: tuple[ModuleComparison, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def sentences(self) -> list[str]:
        """What a person wants to know."""
        inputs = [each.input_overlap for each in self.modules]
        outputs = [each.output_overlap for each in self.modules]
        lines = [
            f"{self.first} and {self.second}: cosine {self.cosine:.3f} over {len(self.modules)}"
            f" modules; they share {np.mean(inputs):.1%} of their input directions and"
            f" {np.mean(outputs):.1%} of their output directions on the mean"
        ]
        for name, only in ((self.first, self.only_first), (self.second, self.only_second)):
            if only:
                lines.append(f"{len(only)} modules are changed by {name} alone, such as {only[0]}")
        return lines


def compare_adapters(
    first: tuple[str, Mapping[str, Factors]], second: tuple[str, Mapping[str, Factors]]
) -> AdapterComparison:
    """Compare the updates of two adapters. first, second: (title, module -> factors with s in B).

    ValueError if they change no module of one name and shape both.
    """
    both = [
        name
        for name, factors in first[1].items()
        if name in second[1] and second[1][name].shape == factors.shape
    ]
    if not both:
        raise ValueError("they change no module of one name and shape")
    modules = tuple(_compared(name, first[1][name], second[1][name]) for name in both)
    inner = sum(first[1][name].inner(second[1][name]) for name in both)
    norms = [sum(side[1][name].norm ** 2 for name in both) ** 0.5 for side in (first, second)]
    return AdapterComparison(
        first=first[0],
        second=second[0],
        cosine=inner / (norms[0] * norms[1]) if norms[0] * norms[1] else 0.0,
        modules=modules,
        only_first=tuple(name for name in first[1] if name not in both),
        only_second=tuple(name for name in second[1] if name not in both),
    )


def _compared(name: str, first: Factors, second: Factors) -> ModuleComparison:
    spaces = [_directions(each) for each in (first, second)]
    norm = first.norm
    return ModuleComparison(
        module=name,
        cosine=first.cosine(second),
        input_overlap=_overlap(spaces[0][1].T, spaces[1][1].T),
        output_overlap=_overlap(spaces[0][0], spaces[1][0]),
        norm_ratio=second.norm / norm if norm else None,
    )


def _directions(factors: Factors) -> tuple[Values, Values]:
    """Orthonormal directions of outputs, outputs x n, and of inputs, n x inputs."""
    found = spectrum_of(factors)
    n = int((found.values > _FLAT * found.values[0]).sum()) if found.values[0] else 0
    return found.left[:, :n], found.right[:n]


def _overlap(first: Values, second: Values) -> float:
    smaller = min(first.shape[1], second.shape[1])
    return float(np.linalg.norm(first.T @ second) ** 2 / smaller) if smaller else 0.0
