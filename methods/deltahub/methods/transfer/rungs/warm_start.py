"""A student that begins as an adapter which a way without a training has made, and then learns."""

from collections.abc import Mapping
from typing import Any

from deltahub.methods.adapters.lora import parse_config
from deltahub.methods.adapters.names import Kind, part_of
from deltahub.methods.errors import CannotMerge, CannotTransfer
from deltahub.methods.transfer.recipe import Recipe


def warm_start(
    config: bytes, tensors: Mapping[str, Any], recipe: Recipe, adapter: str
) -> dict[str, Any]:
    """The tensors of a plain LoRA as those of a student of this recipe, which then changes as much.

    B is multiplied by the ratio of both scales (alpha / r), because A and B alone do not say how
    much they change. tensors: of numpy or torch, under PEFT's names. CannotTransfer for a student
    that cannot begin so.
    """
    if recipe.kind != "lora":
        raise CannotTransfer(
            f"a {recipe.kind} also learns the lengths of rows, which {adapter} does not have"
        )
    try:
        found = parse_config(config, adapter)
    except CannotMerge as exc:
        raise CannotTransfer(str(exc)) from exc
    if found.alpha_pattern or found.raw.get("rank_pattern"):
        raise CannotTransfer(f"{adapter} has other ranks or scales in some modules")
    rank = found.raw.get("r")
    if rank != recipe.rank:
        raise CannotTransfer(f"{adapter} has rank {rank}, and the new one {recipe.rank}")
    ratio = found.scale(found.alpha, recipe.rank) / (recipe.alpha / recipe.rank)
    parts = {name: part_of(name).kind for name in tensors}
    strange = next((name for name, kind in parts.items() if kind not in (Kind.A, Kind.B)), None)
    if strange is not None:
        raise CannotTransfer(f"{adapter} has {strange}, which is no part of a linear module")
    return {
        name: each * ratio if parts[name] == Kind.B and ratio != 1 else each
        for name, each in tensors.items()
    }
