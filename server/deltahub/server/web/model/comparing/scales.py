"""Colours of heat maps: which of a few classes a number has, and what the legend says."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from deltahub.server.web.formats import percent, short

View = Literal["relative", "same", "rank"]
# Classes of app.css: q1 is near the page's colour, q8 far from it; q0 is no change at all.
N_CLASSES: Final = 8
UNKNOWN: Final = "–"  # noqa: RUF001
TITLES: Final[Mapping[View, str]] = {
    "relative": "Relative change",
    "same": "Identical weights",
    "rank": "Rank of the change",
}
_RANKS: Final = tuple(2.0**i for i in range(N_CLASSES))


@dataclass(frozen=True)
class Scale:
    """edges: the least value of each class from 1 on, rising. labels: of the legend, q0 first."""

    view: View
    edges: Sequence[float]
    labels: Sequence[str]

    def class_of(self, cell: Mapping[str, Any]) -> int | None:
        """0 for no change, 1 to N_CLASSES for more and more; None where nothing is known."""
        value = changed_value(cell, self.view)
        if value is None:
            return None
        if value <= 0:
            return 0
        return max(1, sum(value >= edge for edge in self.edges))


def changed_value(cell: Mapping[str, Any], view: View) -> float | None:
    """How much a cell has changed: the number that its colour shows."""
    if view == "same":
        return 1 - cell["n_same"] / cell["count"] if cell["count"] else None
    if view == "rank":
        rank = cell["rank"]
        return None if rank is None else float(rank) + (0.5 if cell["is_above"] else 0.0)
    relative: float | None = cell["relative"]
    return relative


def text_of(cell: Mapping[str, Any], view: View) -> str:
    """The number of a cell, as people read it."""
    if view == "same":
        return percent(cell["n_same"], cell["count"]) if cell["count"] else UNKNOWN
    if view == "rank":
        if cell["rank"] is None:
            return UNKNOWN
        return f"> {cell['rank']}" if cell["is_above"] else str(cell["rank"])
    return short(cell["relative"])


def scale_of(cells: Iterable[Mapping[str, Any]], view: View) -> Scale:
    """The scale of a heat map. That of the relative change fits its numbers; others are fixed."""
    if view == "same":
        edges = [i / N_CLASSES for i in range(N_CLASSES)]
        labels = ["100 %", *(f"< {100 * (1 - edge):.3g} %" for edge in edges)]
        return Scale(view, edges, labels)
    if view == "rank":
        labels = ["0", *(f"{edge:.0f}" for edge in _RANKS[:-1]), f"≥ {_RANKS[-1]:.0f}"]
        return Scale(view, _RANKS, labels)
    values = [each for cell in cells if (each := cell["relative"])]
    low, high = (min(values), max(values)) if values else (1e-4, 1.0)
    # Numbers that hardly differ have one colour, and not the whole scale.
    low = min(low, high / 4)
    step = math.log(high / low) / N_CLASSES
    edges = [low * math.exp(step * i) for i in range(N_CLASSES)]
    return Scale(view, edges, ["0", *(f"{edge:.2g}" for edge in edges)])
