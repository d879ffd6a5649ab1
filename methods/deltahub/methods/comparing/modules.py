"""Sorts the tensors of a model into layers and modules, by their names."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

# Parameters of a module, which a cell has together.
_PARAMETERS: Final = frozenset({"weight", "bias", "gamma", "beta"})
# More columns than this are joined by the beginnings of their names.
MAX_MODULES: Final = 40
OTHERS: Final = "others"
_NUMBER: Final = re.compile(r"\d+")


def place_of(name: str) -> tuple[str | None, str]:
    """(layer, module) of a tensor; the layer is None for a tensor outside of all layers.

    The first part of a name that is a number ends the layer's name, such as `model.layers.7`; what
    follows is its module, such as `self_attn.q_proj`. Later numbers count experts and the like,
    which are joined: `mlp.experts.*.down_proj`.
    """
    parts = name.split(".")
    if len(parts) > 1 and parts[-1] in _PARAMETERS:
        parts = parts[:-1]
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    if at is None:
        return None, ".".join(parts)
    rest = ["*" if part.isdecimal() else part for part in parts[at + 1 :]]
    return ".".join(parts[: at + 1]), ".".join(rest) or parts[max(at - 1, 0)]


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts layer 9 before layer 10."""
    pieces = re.split(r"(\d+)", text)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def cells_of(tensors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is known of each layer and module, in natural order: sums over its tensors.

    tensors: as the report has them. relative: of those that changed. rank: the largest among the
    cell's matrices, at 90 % of the energy; is_above: it is larger than the sketch can tell.
    """
    tensors = list(tensors)
    shorten = _shortener([place_of(each["name"]) for each in tensors])
    groups: dict[tuple[str | None, str], list[Mapping[str, Any]]] = {}
    for each in tensors:
        layer, module = place_of(each["name"])
        groups.setdefault((layer, shorten(layer, module)), []).append(each)
    order = sorted(groups, key=lambda key: (natural(key[0] or ""), natural(key[1])))
    return [_cell(layer, module, groups[layer, module]) for layer, module in order]


def _shortener(places: Iterable[tuple[str | None, str]]) -> Callable[[str | None, str], str]:
    """A function (layer, module) -> column, so that there are few columns."""
    modules: dict[bool, set[str]] = {True: set(), False: set()}
    for layer, module in places:
        modules[layer is not None].add(module)
    columns = {is_inside: _Columns.of(names) for is_inside, names in modules.items()}
    return lambda layer, module: columns[layer is not None].column(module)


@dataclass(frozen=True)
class _Columns:
    """levels: parts of a name that count. names: of all columns."""

    levels: int
    names: frozenset[str]

    @classmethod
    def of(cls, modules: AbstractSet[str]) -> "_Columns":
        levels = max((name.count(".") + 1 for name in modules), default=1)
        while levels > 1 and len({_first(name, levels) for name in modules}) > MAX_MODULES:
            levels -= 1
        names = sorted({_first(name, levels) for name in modules})
        return cls(levels, frozenset(names[:MAX_MODULES]))

    def column(self, module: str) -> str:
        short = _first(module, self.levels)
        return short if short in self.names else OTHERS


def _first(name: str, levels: int) -> str:
    return ".".join(name.split(".")[:levels])


def _cell(layer: str | None, module: str, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    both = [each for each in tensors if each["status"] in ("same", "changed")]
    changed = [each for each in both if each["status"] == "changed"]
    ranked = [each for each in changed if each["rank_limit"] is not None]
    is_above = any(each["rank_90"] is None for each in ranked)
    ranks = [each["rank_90"] or each["rank_limit"] for each in ranked]
    return {
        "layer": layer,
        "module": module,
        "n_tensors": len(tensors),
        "n_changed": len(changed),
        "n_apart": len(tensors) - len(both),
        "count": sum(each["count"] for each in both),
        "n_same": sum(each["n_same"] for each in both),
        "relative": relative_change(changed) if changed else (0.0 if both else None),
        "rank": max(ranks) if ranks else (0 if both and not changed else None),
        "is_above": is_above,
    }


def relative_change(tensors: Iterable[Mapping[str, Any]]) -> float | None:
    """||B - A|| / ||A|| over the elements of all these tensors; None if it is not known."""
    read = [each for each in tensors if each["norm"] is not None and each["change"] is not None]
    norm2 = sum(each["norm"] ** 2 for each in read)
    change2 = sum(each["change"] ** 2 for each in read)
    return float((change2 / norm2) ** 0.5) if norm2 > 0 else None
