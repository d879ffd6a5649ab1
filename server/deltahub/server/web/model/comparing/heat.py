"""Lays out the heat map of layers and modules, for a drawing and for a table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltahub.server.web.model.comparing.scales import Scale, View, scale_of, text_of

_LABEL_PX: Final = 7.2  # of a character
_ROW_PX: Final = 16
_GAP_PX: Final = 1
_WIDTH_PX: Final = 1160
_MOST_ROW_LABELS: Final = 64


@dataclass(frozen=True)
class Place:
    """A cell of the drawing. shade: the class of its colour; None where nothing is known."""

    x: float
    y: float
    shade: int | None
    layer: str | None
    module: str
    text: str
    title: str


@dataclass(frozen=True)
class Heat:
    """rows, columns: (text, x or y) of the labels. table: a row of cells for each layer."""

    scale: Scale
    width: float
    height: float
    cell: tuple[float, float]
    rows: Sequence[tuple[str, float, float]]
    columns: Sequence[tuple[str, float, float]]
    places: Sequence[Place]
    modules: Sequence[str]
    table: Sequence[tuple[str, Sequence[Place | None]]]
    outside: Sequence[Place]


def lay_out(cells: Sequence[Mapping[str, Any]], view: View) -> Heat:
    """The heat map of all cells. Modules outside of layers are listed beside it."""
    inside = [cell for cell in cells if cell["layer"] is not None]
    scale = scale_of(cells, view)
    layers = list(dict.fromkeys(cell["layer"] for cell in inside))
    modules = list(dict.fromkeys(cell["module"] for cell in sorted(inside, key=_module)))
    labels = short_layers(layers)
    left = 12 + _LABEL_PX * max(map(len, labels), default=0)
    top = 12 + _LABEL_PX * 0.75 * max(map(len, modules), default=0)
    width = min(56.0, max(18.0, (_WIDTH_PX - left) / max(len(modules), 1)))
    at_column = {module: left + i * width for i, module in enumerate(modules)}
    at_row = {layer: top + i * _ROW_PX for i, layer in enumerate(layers)}
    by_place = {}
    for cell in inside:
        place = _place(cell, scale, at_column[cell["module"]], at_row[cell["layer"]])
        by_place[cell["layer"], cell["module"]] = place
    step = 1 + len(layers) // _MOST_ROW_LABELS
    names = list(zip(labels, layers, strict=True))
    return Heat(
        scale=scale,
        # The last label leans out of its column.
        width=left + width * len(modules) + top * 0.75,
        height=top + _ROW_PX * len(layers),
        cell=(width - _GAP_PX, _ROW_PX - _GAP_PX),
        rows=[(name, left - 6, at_row[layer] + 11.5) for name, layer in names[::step]],
        columns=[(name, x + width / 2 - 2, top - 6) for name, x in at_column.items()],
        places=list(by_place.values()),
        modules=modules,
        table=[(name, [by_place.get((layer, m)) for m in modules]) for name, layer in names],
        outside=[_place(cell, scale, 0, 0) for cell in cells if cell["layer"] is None],
    )


def short_layers(layers: Sequence[str]) -> list[str]:
    """Names of layers as numbers, if all of them belong to one list of layers."""
    beginnings = {layer.rpartition(".")[0] for layer in layers}
    if len(beginnings) > 1:
        return [*layers]
    return [layer.rpartition(".")[2] for layer in layers]


def _module(cell: Mapping[str, Any]) -> str:
    return str(cell["module"])


def _place(cell: Mapping[str, Any], scale: Scale, x: float, y: float) -> Place:
    text = text_of(cell, scale.view)
    where = f"{cell['layer']} {cell['module']}" if cell["layer"] else cell["module"]
    parts = [
        f"relative change {text_of(cell, 'relative')}",
        f"{text_of(cell, 'same')} of the weights identical",
        f"rank {text_of(cell, 'rank')}",
    ]
    if cell["n_apart"]:
        parts.append(f"{cell['n_apart']} tensors of one model alone, or of another shape")
    title = f"{where}: {', '.join(parts)}"
    shade = scale.class_of(cell)
    return Place(x, y, shade, cell["layer"], cell["module"], text, re.sub(r"\s+", " ", title))
