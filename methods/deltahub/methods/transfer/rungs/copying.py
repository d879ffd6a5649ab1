"""The cheapest way: the update of the old base is added to the new one as it is.

Shahroz et al., "PortLLM: Personalizing Evolving Large Language Models with Training-Free and
Portable Model Patches", ICLR 2025, arXiv 2410.10870: theta'_t = theta' + Delta W_s. It holds for a
base that was trained further, and fails for one that only looks alike, which the cosine tells.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.lora import changes_of, parse_config
from deltahub.methods.errors import CannotMerge, CannotTransfer
from deltahub.methods.kinds.kind import Shapes

# Below it, the new base was hardly trained on from the old one.
RELATED_COSINE: Final = 0.9


class Likeness(BaseModel):
    """How alike the matrices are that an adapter changes, in the old and the new base."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cosines: dict[str, float] = Field(description="Module -> the cosine of both weights.")

    @property
    def mean(self) -> float:
        return sum(self.cosines.values()) / len(self.cosines) if self.cosines else 0.0

    @property
    def is_related(self) -> bool:
        """Whether a copy has a chance."""
        return self.mean >= RELATED_COSINE

    def sentences(self) -> list[str]:
        """What a person should know of it."""
        if not self.cosines:
            return []
        lowest = min(self.cosines, key=lambda name: (self.cosines[name], name))
        verdict = (
            "the new base was trained on from the old one, so a copy may do"
            if self.is_related
            else "the new base was trained apart from the old one, so a copy will not do"
        )
        return [
            f"the cosine of the changed matrices in both bases is {self.mean:.3f} on the mean, and"
            f" {self.cosines[lowest]:.3f} in {lowest}: {verdict}"
        ]


def copied_modules(
    config: bytes, names: Collection[str], source: Shapes, target: Shapes, adapter: str
) -> dict[str, str]:
    """Tensor of the bases -> module that the adapter changes there.

    names: of the adapter's tensors. CannotTransfer for an adapter that is no plain LoRA, and for a
    module that the new base lacks or has in another shape.
    """
    require_plain_lora(config, adapter)
    try:
        changes = changes_of(names, source, adapter)
    except CannotMerge as exc:
        raise CannotTransfer(f"{exc}") from exc
    for tensor, change in changes.items():
        if change.whole is not None:
            raise CannotTransfer(
                f"{adapter} replaces {tensor} of its base as a whole, which cannot be copied to"
                " another base: train it there instead"
            )
        if tensor not in target:
            raise CannotTransfer(
                f"{adapter} changes {change.module}, which the new base does not have: train it"
                " there instead"
            )
        if source[tensor][1] != target[tensor][1]:
            shapes = [" x ".join(map(str, each[tensor][1])) for each in (source, target)]
            raise CannotTransfer(
                f"{adapter} changes {change.module}, which is {shapes[0]} in the old base and"
                f" {shapes[1]} in the new one: train it there instead"
            )
    return {tensor: change.module for tensor, change in changes.items()}


def require_plain_lora(config: bytes, adapter: str) -> dict[str, Any]:
    """adapter_config.json; CannotTransfer if A and B alone do not say what the adapter does, such
    as DoRA, an activated LoRA, or PiSSA that was not converted.
    """
    try:
        return dict(parse_config(config, adapter).raw)
    except CannotMerge as exc:
        raise CannotTransfer(str(exc)) from exc


def cosine(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """The cosine of two weights of one shape; 0 if one is zero."""
    one = first.astype(np.float64, copy=False).ravel()
    other = second.astype(np.float64, copy=False).ravel()
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else 0.0


def moved_config(
    config: bytes,
    base: str,
    revision: str | None,
    modules: Mapping[str, str] | None = None,
    *,
    is_named: bool = False,
) -> bytes:
    """adapter_config.json of the same adapter on another base.

    modules: of the old base -> of the new one. Where they differ, or with is_named, the modules are
    named one by one, so that the adapter has none in other layers; CannotTransfer for patterns of
    ranks or scales then, which name modules of the old base.
    """
    found: dict[str, Any] = json.loads(config)
    found |= {"base_model_name_or_path": base, "revision": revision}
    is_renamed = modules is not None and any(old != new for old, new in modules.items())
    if modules and (is_renamed or is_named):
        for field in ("rank_pattern", "alpha_pattern"):
            if is_renamed and found.get(field):
                raise CannotTransfer(
                    f"the adapter has {field}, and its layers change their numbers in the new base:"
                    " train it there instead"
                )
        found["target_modules"] = sorted(modules.values())
        found["layers_to_transform"] = found["layers_pattern"] = None
    elif modules is not None and not modules:
        raise CannotTransfer("no layer of the adapter has a partner in the new base")
    return (json.dumps(found, indent=2, sort_keys=True) + "\n").encode()
