"""What the values of an adapter tell, which neither its configuration nor its shapes do.

Some adapters have elements that are no numbers. Some say that they are plain LoRA and are PiSSA:
their update is the principal part of the base's weights.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.disguised import LIKELY, principal_cosine
from deltahub.methods.adapters.inspection.engines import Answer
from deltahub.methods.adapters.inspection.report import AdapterReport
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.lora import Change, changes_of
from deltahub.methods.errors import MethodError

# Bytes of a tensor that is looked at, of an adapter and of its base. With copies in other types it
# takes some times as much memory.
MAX_FACTOR: Final = 64 << 20
MAX_WEIGHT: Final = 32 << 20
# Of all tensors of an adapter whose values are looked at.
MAX_VALUES: Final = 1 << 30
# Modules that are compared with the base's weights.
_COMPARED: Final = 4
_FLOATS: Final = ("F32", "F16", "BF16")
_ITEM: Final = {"F32": 4, "F16": 2, "BF16": 2}

Read = Callable[[str], Any]
"""The values of a tensor in single precision; None if it cannot be looked at."""


def is_disguised(
    own: tuple[Mapping[str, TensorShape], Read], base: tuple[Mapping[str, TensorShape], Read]
) -> bool:
    """Whether an adapter's smallest matrices hold the principal part of the base's weights.

    own, base: the tensors of each, and how their values are read. The smallest matrices tell as
    much as any, and fit into the memory of a worker that stores pushes.
    """
    try:
        changes = changes_of(own[0].keys(), base[0].keys(), "the adapter")
    except MethodError:
        return False
    cosines: list[float] = []
    for name, change in sorted(changes.items(), key=lambda item: prod(base[0][item[0]].shape)):
        cosine = _cosine(own, base, name, change)
        if cosine is not None:
            cosines.append(cosine)
        if len(cosines) == _COMPARED:
            break
    return bool(cosines) and sum(cosines) / len(cosines) > LIKELY


def with_odd_values(report: AdapterReport, tensor: str) -> AdapterReport:
    """The report on an adapter one of whose tensors has elements that are no numbers."""
    fault = f"{tensor} has infinite or NaN elements: push the weights of a training that ended well"
    return report.model_copy(update={"faults": [*report.faults, fault], "state": "broken"})


def with_disguise(report: AdapterReport) -> AdapterReport:
    """The report on an adapter that says it is plain, and is a PiSSA adapter."""
    return report.model_copy(update={
        "state": "quarantined",
        "why": "its update holds the first singular directions of the base's weights, as"
        " that of a PiSSA adapter does, though init_lora_weights says"
        f" {report.init!r}: on the base itself it would add these directions twice",
        "way_out": "say pissa in init_lora_weights of adapter_config.json, and push it"
        " again; or push its initial factors in a folder pissa_init/ beside it, and convert"
        " it; if it is a plain LoRA after all, `deltahub adapter rule NAME off`",
        "verdicts": [
            each.model_copy(update={
                "verdict": Answer.DOES_NOT.value,
                "reasons": ["it holds a part of the base, which its configuration hides"],
            })
            for each in report.verdicts
        ],
    })  # fmt: skip


def _cosine(
    own: tuple[Mapping[str, TensorShape], Read],
    base: tuple[Mapping[str, TensorShape], Read],
    name: str,
    change: Change,
) -> float | None:
    """Between a module's update and its weight's principal part; None if it is not compared."""
    if change.is_embedding or change.down is None or change.up is None:
        return None
    shapes = (base[0][name], own[0][change.down], own[0][change.up])
    if any(each.dtype not in _FLOATS or len(each.shape) != 2 for each in shapes):
        return None
    sizes = [prod(each.shape) * _ITEM[each.dtype] for each in shapes]
    if sizes[0] > MAX_WEIGHT or max(sizes[1:]) > MAX_FACTOR:
        return None
    weight, down, up = base[1](name), own[1](change.down), own[1](change.up)
    if weight is None or down is None or up is None or up.shape[1] != down.shape[0]:
        return None
    update = Factors(down.astype(np.float64), up.astype(np.float64))
    if update.shape == weight.shape[::-1] != weight.shape:
        weight = np.ascontiguousarray(weight.T)  # transposed, as of GPT-2
    return principal_cosine(weight, update) if update.shape == weight.shape else None
