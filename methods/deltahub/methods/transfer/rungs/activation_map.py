"""An adapter in the coordinates of another base, found from what both bases compute on one text.

Where a source module maps x_s to y_s and the target's maps x_t to y_t on the same texts, ridge
regression finds R_x and R_y with x_s ≈ R_x x_t and y_t ≈ R_y y_s. The update B_s A_s of the source
then becomes R_y B_s A_s R_x: A_t = A_s R_x and B_t = R_y B_s, of the same rank and scale. If the
target is the source with rotated coordinates, both maps are rotations, and the result is exact.

The outputs of a module with more outputs than inputs lie in a subspace, and an adapter also writes
outside of it, where the texts say nothing of R_y. Where both bases have the same number of outputs,
R_y is therefore the identity there, and not zero. So is R_x where the inputs of both bases are
alike as they are, which holds for a base that was trained further.

An adapter reads and writes directions in which the base's own activations vary little. A small
ridge fits them to noise, and the mapped adapter then does worse than none. The ridge is therefore
large: the best of six on the models of `make bench-transfer`. Where places that a map was not found
on show that it is exact, there is no noise, and hardly any ridge is needed: so the result is exact
for the same network in other coordinates, which a large ridge would shrink.

The idea is that of LoRASuite (arXiv 2505.13515), which maps weights by shared embeddings; the
regression on activations is ours. Hoerl and Kennard, "Ridge Regression", Technometrics 12, 1970.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.names import ENDING_OF, PREFIX, Kind, part_of
from deltahub.methods.errors import CannotTransfer

Values = npt.NDArray[np.float64]

# Of the mean square of the regressor's numbers, times the rows.
RIDGE: Final = 1.0
_HARDLY_ANY: Final = 1e-11
# A map is exact if it leaves less of the squares of the places that it was not found on. One
# network in two systems of coordinates leaves 1e-12 in single precision; a base that was trained
# further leaves far more.
_EXACT: Final = 1e-9
_HELD_OUT: Final = 5
# The smallest eigenvalue of the places' squares, in shares of the largest, where they are said to
# show every direction. The first layer sees some tokens again and again: any map can be exact on
# these.
_ALL_DIRECTIONS: Final = 1e-8


@dataclass(frozen=True)
class Activations:
    """Of one module, a row for each place in the texts. inputs: n x width; outputs: n x width."""

    inputs: Values
    outputs: Values


@dataclass(frozen=True)
class MappedModule:
    """The factors for one module of the target, and how well the maps explain the activations.

    input_fit, output_fit: 1 - |residual|² / |x|², 1 for a perfect map.
    """

    factors: Factors
    input_fit: float
    output_fit: float


def ridge_map(
    given: Values, wanted: Values, ridge: float = RIDGE, *, near_identity: bool = False
) -> Values:
    """R of the least |wanted - given Rᵀ|² + lambda |R - P|²: wanted width x given width.

    P is the identity or zero. Rows belong together. lambda = ridge times the mean of the squared
    singular values of `given`.
    """
    gram = given.T @ given
    penalty = ridge * np.trace(gram) / len(gram)
    start = np.eye(len(gram)) if near_identity else np.zeros((wanted.shape[1], len(gram)))
    rest = given.T @ (wanted - given @ start.T)
    return np.asarray(start + np.linalg.solve(gram + penalty * np.eye(len(gram)), rest).T)


def best_map(given: Values, wanted: Values, ridge: float | None, *, near_identity: bool) -> Values:
    """The map by this ridge. None: hardly any where the rows show every direction, and the map that
    is found without every fifth of them is exact on these; else RIDGE.
    """
    if ridge is None:
        ridge = _HARDLY_ANY if _is_exact(given, wanted) else RIDGE
    return ridge_map(given, wanted, ridge, near_identity=near_identity)


def _is_exact(given: Values, wanted: Values) -> bool:
    is_held_out = np.arange(len(given)) % _HELD_OUT == 0
    rest = given[~is_held_out]
    if len(rest) < given.shape[1]:
        return False  # always exact
    found = ridge_map(rest, wanted[~is_held_out], _HARDLY_ANY)
    if _fit(given[is_held_out] @ found.T, wanted[is_held_out]) < 1 - _EXACT:
        return False
    squares = np.linalg.eigvalsh(rest.T @ rest)
    return bool(squares[0] > _ALL_DIRECTIONS * squares[-1])


def map_factors(
    factors: Factors, source: Activations, target: Activations, ridge: float | None = None
) -> MappedModule:
    """The update of a source module as one of a target module. CannotTransfer if rows or widths
    do not belong together. ridge: see best_map.
    """
    if len(source.inputs) != len(target.inputs):
        raise CannotTransfer(
            f"the source was seen at {len(source.inputs)} places and the target at"
            f" {len(target.inputs)}: record both at the same ends of tokens"
        )
    if factors.shape != (source.outputs.shape[1], source.inputs.shape[1]):
        raise CannotTransfer(
            f"the adapter's update is {factors.shape[0]} x {factors.shape[1]}, and the source's"
            f" module {source.outputs.shape[1]} x {source.inputs.shape[1]}: it is for another base"
        )
    are_alike = _are_alike(target.inputs, source.inputs)
    inwards = best_map(target.inputs, source.inputs, ridge, near_identity=are_alike)
    has_same_width = source.outputs.shape[1] == target.outputs.shape[1]
    outwards = best_map(source.outputs, target.outputs, ridge, near_identity=has_same_width)
    return MappedModule(
        Factors(factors.down @ inwards, outwards @ factors.up),
        _fit(target.inputs @ inwards.T, source.inputs),
        _fit(source.outputs @ outwards.T, target.outputs),
    )


def require_linear(names: Collection[str]) -> None:
    """CannotTransfer for an adapter with more than the factors of linear modules. names: of its
    tensors.
    """
    for name in sorted(names):
        if part_of(name).kind not in (Kind.A, Kind.B):
            raise CannotTransfer(
                f"the adapter has {name}, which is no part of a plain LoRA of linear modules: train"
                " it on the new base instead"
            )


def map_adapter(
    tensors: Mapping[str, Values],
    modules: Mapping[str, str],
    source: Mapping[str, Activations],
    target: Mapping[str, Activations],
    ridge: float | None = None,
) -> tuple[dict[str, Values], dict[str, MappedModule]]:
    """(the tensors of the adapter on the target, what became of each of its modules).

    tensors: of a plain LoRA, under PEFT's names. modules: of the source -> of the target; those of
    layers without a partner are left out. source, target: activations by module.
    """
    moved: dict[str, Values] = {}
    about: dict[str, MappedModule] = {}
    for name in sorted(tensors):
        part = part_of(name)
        if part.kind == Kind.B:
            continue
        require_linear([name])
        partner = modules.get(part.module)
        if partner is None:
            continue
        up = tensors[part.stem + ENDING_OF[Kind.B]]
        found = map_factors(Factors(tensors[name], up), source[part.module], target[partner], ridge)
        about[partner] = found
        for kind, values in ((Kind.A, found.factors.down), (Kind.B, found.factors.up)):
            moved[PREFIX + partner + ENDING_OF[kind]] = values
    if not moved:
        raise CannotTransfer("no module of the adapter has a partner in the new base")
    return moved, about


def linear_cka(first: Values, second: Values) -> float:
    """How alike two layers see the same places, whatever their coordinates: 1 for a rotation.

    |YᵀX|² / (|XᵀX| |YᵀY|) of centred columns, Frobenius norms: Kornblith et al., "Similarity of
    Neural Network Representations Revisited", ICML 2019, arXiv 1905.00414, equation 8.
    """
    x, y = first - first.mean(axis=0), second - second.mean(axis=0)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms else 0.0


def match_layers(source: Sequence[Values], target: Sequence[Values]) -> dict[int, int]:
    """Source layer -> target layer, in order and without two on one, so that the sum of their CKA
    is the largest. The deeper base has layers without a partner.
    """
    alike = np.array([[linear_cka(one, other) for other in target] for one in source])
    best = np.zeros((len(source) + 1, len(target) + 1))
    for i in range(1, len(source) + 1):
        for j in range(1, len(target) + 1):
            best[i, j] = max(
                best[i - 1, j - 1] + alike[i - 1, j - 1], best[i - 1, j], best[i, j - 1]
            )
    found: dict[int, int] = {}
    i, j = len(source), len(target)
    while i and j:
        if best[i, j] == best[i - 1, j - 1] + alike[i - 1, j - 1]:
            found[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return dict(sorted(found.items()))


def name_in_target(module: str, layers: Mapping[int, int]) -> str | None:
    """`model.layers.3.self_attn.q_proj` of the source as a module of the target; None if its layer
    has no partner. The first number in a name is the layer's.
    """
    parts = module.split(".")
    for i, part in enumerate(parts):
        if part.isdecimal():
            layer = layers.get(int(part))
            if layer is None:
                return None
            return ".".join([*parts[:i], str(layer), *parts[i + 1 :]])
    return module


def _are_alike(first: Values, second: Values) -> bool:
    """Whether one is a better guess of the other than zero is."""
    return first.shape == second.shape and _fit(first, second) > 0


def _fit(found: Values, wanted: Values) -> float:
    total = float((wanted**2).sum())
    return 1 - float(((wanted - found) ** 2).sum()) / total if total else 1.0
