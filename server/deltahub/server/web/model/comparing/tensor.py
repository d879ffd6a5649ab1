"""Draws one tensor's difference: its histogram, and the heat map of its blocks."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltahub.server.web.formats import short
from deltahub.server.web.model.comparing.scales import N_CLASSES

_WIDTH: Final = 640.0
_HEIGHT: Final = 180.0
# Steps of a heat map's bytes, and the octaves that they are (docs/compare.md).
_STEPS, _OCTAVES = 254, 24.0


@dataclass(frozen=True)
class Histogram:
    """bars: (x, y, width, height, title). ticks: (x, text). share_zero: of all elements."""

    width: float
    height: float
    bars: Sequence[tuple[float, float, float, float, str]]
    ticks: Sequence[tuple[float, str]]
    zero: int
    total: int


@dataclass(frozen=True)
class Blocks:
    """paths: (class of a colour, outline of all of its blocks). labels: of classes from 1 on."""

    rows: int
    columns: int
    paths: Sequence[tuple[int, str]]
    labels: Sequence[str]
    table: Sequence[tuple[str, str]]


def draw_histogram(found: Mapping[str, Any]) -> Histogram:
    """The histogram of a detail, as docs/compare.md describes it."""
    counts: list[int] = found["counts"]
    half = len(counts) // 2
    ends = [2.0 ** min((found["top"] + 1 - step) / 2, 1023.0) for step in range(half)]
    edges = [-each for each in ends] + [0.0] + ends[::-1]
    most, width = max([*counts, 1]), _WIDTH / len(counts)
    bars = []
    for at, n in enumerate(counts):
        height = _HEIGHT * n / most
        title = f"{short(edges[at])} to {short(edges[at + 1])}: {n:,}"
        bars.append((at * width + 0.5, _HEIGHT - height, width - 1, height, title))
    marks = [*range(0, half, 8), half, *range(len(counts) - half + 8, len(counts) + 1, 8)]
    ticks = [(at * width, short(edges[at])) for at in marks]
    return Histogram(_WIDTH, _HEIGHT, bars, ticks, found["zero"], found["zero"] + sum(counts))


def draw_blocks(found: Mapping[str, Any], shape: Sequence[int]) -> Blocks:
    """The heat map of a detail. Its classes are steps of the logarithm of a block's mean."""
    cells = base64.b64decode(found["cells"])
    width: int = found["columns"]
    least = min((each for each in cells if each), default=255)
    # At least an octave for each class, so that noise does not look like structure.
    span = max(255 - least, N_CLASSES * _STEPS / _OCTAVES / 2)
    outlines: dict[int, list[str]] = {}
    for row in range(found["rows"]):
        line = cells[row * width : (row + 1) * width]
        classes = [_class_of(each, span) for each in line]
        begin = 0
        for at in range(1, width + 1):
            if at == width or classes[at] != classes[begin]:
                n = at - begin
                outlines.setdefault(classes[begin], []).append(f"M{begin} {row}h{n}v1h-{n}z")
                begin = at
    largest: float = found["largest"]
    edges = [
        largest * 2.0 ** (-(1 - i / N_CLASSES) * span * _OCTAVES / _STEPS) for i in range(N_CLASSES)
    ]
    paths = [(shade, "".join(parts)) for shade, parts in sorted(outlines.items())]
    return Blocks(
        found["rows"], width, paths, [short(edge) for edge in edges], _strongest(found, shape)
    )


def _class_of(step: int, span: float) -> int:
    if not step:
        return 0
    return 1 + max(0, min(N_CLASSES - 1, int((step - 255 + span) / span * N_CLASSES)))


def _strongest(found: Mapping[str, Any], shape: Sequence[int]) -> list[tuple[str, str]]:
    """The blocks with the largest means: (rows and columns of the tensor, mean)."""
    cells, width = base64.b64decode(found["cells"]), found["columns"]
    rows = shape[0] if len(shape) > 1 else 1
    columns = 1
    for each in shape[1:] if len(shape) > 1 else shape:
        columns *= each
    order = sorted(range(len(cells)), key=lambda at: (-cells[at], at))[:10]
    shown = []
    for at in order:
        row, column = divmod(at, width)
        down = _span(row, found["rows"], rows)
        across = _span(column, width, columns)
        mean = found["largest"] * 2.0 ** ((cells[at] - 255) * _OCTAVES / _STEPS)
        shown.append((f"rows {down}, columns {across}", short(mean if cells[at] else 0.0)))
    return shown


def _span(block: int, n_blocks: int, size: int) -> str:
    begin, end = size * block // n_blocks, size * (block + 1) // n_blocks
    return f"{begin}–{end - 1}"  # noqa: RUF001
