"""One picture as SVG: a panel for each suite, scores against bytes, every method a point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 820
_PANEL: Final = 330  # height of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 48
_COLUMN: Final = 40  # % of the bytes: where the names of the crowded left stand
_LINE: Final = 18  # from one name to the next
# Colours for a light page, and for a dark one.
_STYLE: Final = """
  text { fill: #1f2328; font: 13px sans-serif }
  .title { font-weight: bold; font-size: 15px }
  .grid { stroke: #d0d7de }
  .name { stroke: #59636e; stroke-width: 0.7 }
  circle { fill: #0b6e4f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #30363d }
    .name { stroke: #9198a1 }
    circle { fill: #3fb68b }
  }
"""


@dataclass(frozen=True)
class Point:
    """bytes_percent: of the bytes of all fine-tunes, each stored whole."""

    name: str
    bytes_percent: float
    score_percent: float


@dataclass(frozen=True)
class Panel:
    title: str
    score: str
    points: Sequence[Point]


def draw(panels: Sequence[Panel]) -> str:
    """Bytes to the right, scores upwards: best is top left. It follows the page's colour scheme."""
    height = _PANEL * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>What each method of merging scores, against the bytes it stores</title>",
        f"<style>{_STYLE}</style>",
    ]
    for i, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {i * _PANEL})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    bottom, right = _PANEL - _BOTTOM, _WIDTH - _RIGHT
    most = 10 * math.ceil(max(100, *(p.bytes_percent for p in panel.points)) / 10)
    lowest = 10 * math.floor(min(p.score_percent for p in panel.points) / 10)

    def x(percent: float) -> float:
        return _LEFT + (right - _LEFT) * percent / most

    def y(score: float) -> float:
        return bottom - (bottom - _TOP) * (score - lowest) / (100 - lowest)

    parts = [
        _text(_LEFT, 22, panel.title, style="title"),
        _text((_LEFT + right) / 2, _PANEL - 10, "bytes, % of all fine-tunes", "middle"),
        f'<g transform="translate(16 {(_TOP + bottom) / 2:.0f}) rotate(-90)">'
        f"{_text(0, 0, panel.score, 'middle')}</g>",
    ]
    for percent in range(0, most + 1, 10):
        parts.append(_line(x(percent), _TOP, x(percent), bottom))
        parts.append(_text(x(percent), bottom + 18, str(percent), "middle"))
    for score in range(lowest, 101, 10):
        parts.append(_line(_LEFT, y(score), right, y(score)))
        parts.append(_text(_LEFT - 8, y(score) + 4, str(score), "end"))
    crowded = sorted(
        (p for p in panel.points if p.bytes_percent < _COLUMN), key=lambda p: -p.score_percent
    )
    for point, at in zip(crowded, _spread([y(p.score_percent) for p in crowded]), strict=True):
        place = x(_COLUMN)
        parts.append(_line(x(point.bytes_percent), y(point.score_percent), place - 6, at, "name"))
        parts.append(_text(place, at + 4, _label(point)))
    for point in panel.points:
        px, py = x(point.bytes_percent), y(point.score_percent)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>')
        if point.bytes_percent >= _COLUMN:
            parts.append(_text(px - 10, py + 4, _label(point), "end"))
    return parts


def _spread(wanted: Sequence[float]) -> list[float]:
    """Heights that are a line apart, in the same order, and near those wanted (ascending)."""
    heights: list[float] = []
    for height in wanted:
        heights.append(max(height, heights[-1] + _LINE) if heights else height)
    # What was pushed below the panel goes up again, with those above it.
    limit = float(_PANEL - _BOTTOM)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], limit)
        limit = heights[i] - _LINE
    return heights


def _label(point: Point) -> str:
    return f"{point.name}: {point.score_percent:.1f} at {point.bytes_percent:.0f} %"


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> str:
    return f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
