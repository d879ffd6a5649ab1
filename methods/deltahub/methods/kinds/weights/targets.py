"""Which weights of a base an adapter may change."""

import re
from collections.abc import Collection
from typing import Final

from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.kind import Shapes

# Models of transformers whose linear layers keep their weights as inputs x outputs (Conv1D).
TRANSPOSED_MODELS: Final = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer"})
_WEIGHT: Final = ".weight"
_LAYER: Final = re.compile(r"(^|\.)[0-9]+\.")
_FLOATS: Final = frozenset({"F32", "F16", "BF16"})
# Gates of expert layers choose, and are no linear maps of features.
_NEVER: Final = frozenset({"router", "gate"})


def modules_of(base: Shapes, targets: Collection[str] | None, title: str) -> list[str]:
    """The adapted modules, in the order of the base's tensors: `model.layers.0.mlp.up_proj`.

    targets: the last parts of their names; None for all matrices in numbered layers, as the paper
    adapts all linear layers of a block. title: of the base. CannotAdapt if there is none, if a
    target is not there, or has a dtype that is not F32, F16 or BF16.
    """
    found = []
    for name, (dtype, shape) in base.items():
        module = name.removesuffix(_WEIGHT)
        last = module.rpartition(".")[2]
        if not name.endswith(_WEIGHT) or len(shape) != 2:
            continue
        if targets is None and (
            not _LAYER.search(name) or last in _NEVER or dtype not in _FLOATS or min(shape) == 1
        ):
            continue
        if targets is not None and not any(_matches(module, each) for each in targets):
            continue
        if dtype not in _FLOATS:
            raise CannotAdapt(
                f"{name} of {title} has dtype {dtype}: PiSSA takes weights in F32, F16 or BF16, so"
                " name the base as it was before it was quantized"
            )
        found.append(module)
    missing = [
        each for each in targets or () if not any(_matches(module, each) for module in found)
    ]
    if missing or not found:
        wanted = ", ".join(missing) if missing else "matrix in numbered layers"
        known = sorted({module.rpartition(".")[2] for module in matrices_of(base)})
        raise CannotAdapt(
            f"{title} has no {wanted} to adapt: targets may be {', '.join(known) or 'none at all'}"
        )
    return found


def matrices_of(base: Shapes) -> list[str]:
    """All modules with a matrix as their weight."""
    return [
        name.removesuffix(_WEIGHT)
        for name, (_, shape) in base.items()
        if name.endswith(_WEIGHT) and len(shape) == 2
    ]


def _matches(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
