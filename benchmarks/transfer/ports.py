"""The two ways without a training: a copy of the adapter, and its activation map."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.transfer.bases import Base
from benchmarks.transfer.owner import LINEARS, Owned
from deltahub.methods.transfer.models.activations import common_ends, record, token_ends
from deltahub.methods.transfer.models.adapters import STUDENT, add_adapter, set_state
from deltahub.methods.transfer.rungs.activation_map import (
    Activations,
    map_adapter,
    match_layers,
    name_in_target,
)
from deltahub.methods.transfer.rungs.copying import cosine


def copied(owned: Owned, target: Base) -> Any:
    """The target with the adapter as it is. CannotTransfer if shapes differ."""
    return _with_student(owned, target, owned.adapter)


def activation_map(owned: Owned, source: Any, target: Base, texts: Sequence[str]) -> Any:
    """The target with the mapped adapter. Layers are matched by what goes into their attention."""
    other = target.model()
    readings = (owned.base.tokenizer, target.tokenizer)
    ends = common_ends(*(token_ends(each, texts) for each in readings))
    before, after = (
        record(model, reading, texts, ends, _modules(plain))
        for model, reading, plain in zip(
            (source, other), readings, (owned.base.model(), other), strict=True
        )
    )
    layers = match_layers(_of_layers(before), _of_layers(after))
    tensors: dict[str, npt.NDArray[np.float64]] = {
        name: each.double().numpy() for name, each in owned.adapter.items()
    }
    partners = {name: name_in_target(name, layers) for name in before}
    moved, _ = map_adapter(
        tensors,
        {name: partner for name, partner in partners.items() if partner is not None},
        before,
        after,
    )
    return _with_student(
        owned, target, {name: torch.tensor(each).float() for name, each in moved.items()}
    )


def likeness(owned: Owned, target: Base) -> float | None:
    """The mean cosine of the matrices that the adapter changes; None if shapes differ."""
    names = [f"{name}.weight" for name in _modules(owned.base.model())]
    pairs = [(owned.base.weights[name], target.weights[name]) for name in names]
    if any(one.shape != other.shape for one, other in pairs):
        return None
    return float(np.mean([cosine(one.numpy(), other.numpy()) for one, other in pairs]))


def _with_student(owned: Owned, target: Base, state: Mapping[str, torch.Tensor]) -> Any:
    model = add_adapter(target.model(), owned.training, STUDENT)
    set_state(model, STUDENT, state)
    return model


def _modules(model: Any) -> list[str]:
    return [name for name, _ in model.named_modules() if name.endswith(LINEARS)]


def _of_layers(activations: Mapping[str, Activations]) -> list[npt.NDArray[np.float64]]:
    """By the number of the layer."""
    found = {
        int(name.split(".")[2]): each.inputs
        for name, each in activations.items()
        if name.endswith("q_proj")
    }
    return [found[number] for number in sorted(found)]
