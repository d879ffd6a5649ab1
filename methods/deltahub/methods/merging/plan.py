"""Decides which tensors of fine-tunes are merged, and which every task keeps as its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.codecs.frames.base_choice import TensorInfo
from deltahub.methods.errors import CannotMerge

# Dtypes that are cast to each other, where a fine-tune has another one than the base.
CASTABLE: Final = ("F64", "F32", "F16", "BF16")
MERGEABLE: Final = (*CASTABLE, "F8_E4M3", "F8_E5M2")
# Below this share of the base's elements the models have too little in common to be fine-tunes.
MIN_SHARED: Final = 0.5
_EXCLUDED: Final = "its name is excluded"


@dataclass(frozen=True)
class MergePlan:
    """merged: names of the merged tensors, in the order of the base. kept: task -> why each of its
    other tensors is kept as it is, by name.
    """

    merged: tuple[str, ...]
    kept: Mapping[str, Mapping[str, str]]


def plan_merge(
    base: Mapping[str, TensorInfo],
    tasks: Mapping[str, Mapping[str, TensorInfo]],
    exclude: Sequence[str],
    reasons: Mapping[str, str] | None = None,
) -> MergePlan:
    """The plan for these models. exclude: regular expressions, searched in tensor names. reasons:
    names of tensors that cannot be merged for what they hold, and why.

    Floating-point tensors that base and all tasks have, with one shape, are merged; all others stay
    with their task. CannotMerge if models of one base do not look like this.
    """
    patterns = [_compiled(pattern) for pattern in exclude]
    merged = []
    why: dict[str, str] = {}
    for name, info in base.items():
        reason = (reasons or {}).get(name) or _reason(info, tasks, patterns)
        if reason is None:
            merged.append(name)
        else:
            why[name] = reason
    _check_shared(base, tasks, merged, why)
    chosen = set(merged)
    kept = {
        task: {
            name: why.get(name, "the base has no such tensor")
            for name in tensors
            if name not in chosen
        }
        for task, tensors in tasks.items()
    }
    return MergePlan(tuple(merged), kept)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise CannotMerge(f"{pattern!r} in exclude is no regular expression: {exc}") from exc


def _reason(
    info: TensorInfo,
    tasks: Mapping[str, Mapping[str, TensorInfo]],
    patterns: Sequence[re.Pattern[str]],
) -> str | None:
    """Why a tensor of the base is not merged; None if it is."""
    if any(pattern.search(info.name) for pattern in patterns):
        return _EXCLUDED
    if info.dtype not in MERGEABLE:
        return f"its dtype is {info.dtype}"
    for task, tensors in tasks.items():
        other = tensors.get(info.name)
        if other is None:
            return f"{task} has no such tensor"
        if other.shape != info.shape:
            return f"{task} has shape {list(other.shape)}, the base {list(info.shape)}"
        if other.dtype != info.dtype and not {other.dtype, info.dtype} <= {*CASTABLE}:
            return f"{task} has dtype {other.dtype}, the base {info.dtype}"
    return None


def _check_shared(
    base: Mapping[str, TensorInfo],
    tasks: Mapping[str, Mapping[str, TensorInfo]],
    merged: Sequence[str],
    why: Mapping[str, str],
) -> None:
    total = sum(info.count for info in base.values())
    shared = sum(base[name].count for name in merged)
    if merged and shared >= MIN_SHARED * total:
        return
    name = max(why, key=lambda each: base[each].count)
    raise CannotMerge(
        f"only {shared} of the base's {total} elements can be merged; at least"
        f" {MIN_SHARED:.0%} must be. The largest tensor that cannot is {name}: {why[name]}. "
        + (
            "Exclude less"
            if why[name] == _EXCLUDED
            else "Name the model that all of the fine-tunes were made from as the base"
        )
    )
