"""Reads PEFT's LoRA adapters, and computes the weights of base plus adapter.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv 2106.09685,
section 4.1: W' = W + s B A, with s = alpha / r, or alpha / sqrt(r) with rank stabilization
(arXiv 2312.03732).
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.adapters.names import (
    ENDING_OF,
    OTHER_FACTOR,
    PREFIX,
    BaseNames,
    Kind,
    part_of,
)
from deltahub.methods.adapters.patterns import values_of
from deltahub.methods.errors import BadAdapter, CannotMerge

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
# Initializations that take a part of the base away, which the adapter then holds.
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda", "lora_ga")
# Options under which A and B alone do not give the weights.
_UNSUPPORTED: Final = {
    "use_dora": "DoRA scales the rows of the merged weight",
    "alora_invocation_tokens": "an activated LoRA acts only after its invocation tokens",
    "layer_replication": "it repeats layers of the base",
    "lora_bias": "it has biases of its own",
    "target_parameters": "it changes parameters that are no modules",
    "trainable_token_indices": "it changes rows of the vocabulary",
    "use_qalora": "QALoRA pools the inputs of A",
}

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LoraConfig:
    """The part of an adapter_config.json that says what its weights mean."""

    alpha: float
    alpha_pattern: Mapping[str, float]
    uses_rslora: bool
    is_transposed: bool  # fan_in_fan_out: the base's weights are (inputs, outputs)
    start: str = "true"  # init_lora_weights in small letters
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def changes_base(self) -> bool:
        """Whether a part of the base was taken away, which the adapter holds."""
        return self.start.startswith(_CHANGES_BASE)

    def scales_of(self, modules: Collection[str]) -> dict[str, float]:
        """alpha of each module, by its name without the prefix of PEFT. CannotMerge for a pattern
        that is no regular expression, or takes too long.
        """
        try:
            return values_of(self.alpha_pattern, self.alpha, modules, "alpha_pattern")
        except BadAdapter as exc:
            raise CannotMerge(str(exc)) from exc

    def scale(self, alpha: float, rank: int) -> float:
        """s of a module with this alpha and rank."""
        return alpha / (math.sqrt(rank) if self.uses_rslora else rank)


@dataclass(frozen=True)
class Change:
    """What an adapter does to one tensor of the base. down, up: names of A and B; or whole: the
    name of a tensor that replaces the base's.
    """

    module: str
    down: str | None = None
    up: str | None = None
    whole: str | None = None
    is_embedding: bool = False


def parse_config(data: bytes, adapter: str) -> LoraConfig:
    """CannotMerge, which names the adapter, for one whose weights are not W + s B A."""
    config = parse_lora(data, adapter)
    if config.changes_base:
        raise CannotMerge(
            f"{adapter} was initialized by {config.start}, which changed its base, so it does not"
            " fit to the base that you name: convert it to a plain LoRA first"
            f" (deltahub adapter convert {adapter.partition('@')[0]})"
        )
    return config


def parse_lora(data: bytes, adapter: str) -> LoraConfig:
    """Do the same, also for an adapter that changed its base: it is W0 + s B A then."""
    try:
        config: dict[str, Any] = json.loads(data)
        kind = str(config.get("peft_type"))[:40]
    except (ValueError, AttributeError) as exc:
        raise CannotMerge(f"{CONFIG_FILE} of {adapter} is no JSON object: {exc}") from exc
    if kind != "LORA":
        raise CannotMerge(f"{adapter} is an adapter of type {kind}; only LoRA can be merged")
    for option, why in _UNSUPPORTED.items():
        if config.get(option):
            raise CannotMerge(
                f"{adapter} is no plain LoRA, because {why} ({option}): merge it into a full model"
                " with PEFT, and push that"
            )
    start = str(config.get("init_lora_weights", True)).lower()
    try:
        alpha = float(config["lora_alpha"])
        patterns = {str(k): float(v) for k, v in (config.get("alpha_pattern") or {}).items()}
        is_stable = bool(config.get("use_rslora"))
        is_transposed = bool(config.get("fan_in_fan_out"))
        return LoraConfig(alpha, patterns, is_stable, is_transposed, start, config)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CannotMerge(f"{CONFIG_FILE} of {adapter} has no valid lora_alpha: {exc!r}") from exc


def changes_of(
    names: Collection[str], base: Collection[str], adapter: str, *, is_kept: bool = False
) -> dict[str, Change]:
    """Tensor of the base -> what the adapter does to it.

    names: of the adapter's tensors. base: of the base's. Copies of the base's own weights, which
    PEFT saves beside adapters of embeddings, are left out. is_kept: the adapter stays one, so that
    these copies, and whole tensors that the base lacks because it ties them, are changes under
    their own names. CannotMerge for a tensor that means nothing for this base.
    """
    found: dict[str, Change] = {}
    base_names = BaseNames(base)
    for name in sorted(names):
        part = part_of(name)
        if part.kind in (Kind.A, Kind.EMBEDDING_A):
            other = part.stem + ENDING_OF[OTHER_FACTOR[part.kind]]
            if other not in names:
                raise CannotMerge(f"{adapter} has {name} and no {other}")
            target = _target(f"{part.module}.weight", base_names, adapter, name)
            if target in found:
                raise CannotMerge(f"{adapter} has two updates of {target}, {name} is one of them")
            is_embedding = part.kind == Kind.EMBEDDING_A
            found[target] = Change(part.module, name, other, None, is_embedding)
        elif part.kind in (Kind.B, Kind.EMBEDDING_B):
            continue
        elif ".lora_" in name:
            raise CannotMerge(f"{adapter} has {name}, which is no part of a plain LoRA")
        elif part.kind == Kind.BASE_COPY:
            if is_kept:
                found[name] = Change(part.module, whole=name)
        else:
            own = name.removeprefix(PREFIX).replace(".base_layer.", ".")
            if is_kept and not base_names.find(own):
                found[name] = Change(own, whole=name)
                continue
            target = _target(own, base_names, adapter, name)
            found[target] = Change(target, whole=name)
    return found


def _target(name: str, base: BaseNames, adapter: str, own: str) -> str:
    alike = base.find(name)
    if len(alike) != 1:
        raise CannotMerge(
            f"{adapter} changes {name} ({own}), which the base does not have: name the base that"
            " the adapter was trained on"
        )
    return alike[0]


def merged_weight(
    scale: float,
    is_transposed: bool,
    change: Change,
    weight: Values,
    factors: tuple[Values, Values],
) -> Values:
    """W + s B A, in float64. weight: the base's, as it is stored; factors: A (r x inputs) and B
    (outputs x r). CannotMerge if the shapes do not fit.
    """
    down, up = factors
    fault = f"the adapter's {change.down} {down.shape} and {change.up} {up.shape} do not fit"
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise CannotMerge(f"{fault} together")
    product = scale * (up @ down)
    if change.is_embedding or is_transposed:
        product = product.T
    if product.shape != weight.shape:
        raise CannotMerge(f"{fault} to the base's weight {weight.shape}")
    return np.asarray(weight + product)
