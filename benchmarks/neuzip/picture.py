"""One picture as SVG: in each panel, what a model loses over bits a weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 820
_PANEL: Final = 380  # height of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 44, 48
_LINE: Final = 15  # from one name to the next
_LEAST_BITS, _MOST_BITS = 3, 17
# Colours for a light page, and for a dark one. Rivals are squares for readers who see no colours.
_STYLE: Final = """
  text { fill: #1f2328; font: 12px sans-serif }
  .title { font-weight: bold; font-size: 15px }
  .grid { stroke: #d0d7de }
  .name { stroke: #59636e; stroke-width: 0.7 }
  .curve { fill: none; stroke: #0b6e4f; stroke-width: 1.5 }
  .ours { fill: #0b6e4f }
  .rival { fill: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #30363d }
    .name { stroke: #9198a1 }
    .curve { stroke: #3fb68b }
    .ours { fill: #3fb68b }
    .rival { fill: #f0883e }
  }
"""


@dataclass(frozen=True)
class Point:
    """lost: how much worse than plain BF16; a score may be better by chance."""

    name: str
    bits: float
    lost: float
    is_ours: bool
    on_curve: bool = False


@dataclass(frozen=True)
class Panel:
    """what: is lost. least: where everything below is drawn, a power of ten."""

    title: str
    what: str
    least: float
    points: Sequence[Point]


def draw(panels: Sequence[Panel]) -> str:
    """Bits to the right, what is lost upwards on a logarithmic scale: best is bottom left. It
    follows the page's colour scheme.
    """
    height = _PANEL * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>What a model loses with rounded weights, over bits a weight</title>",
        f"<style>{_STYLE}</style>",
    ]
    for i, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {i * _PANEL})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    bottom, right = _PANEL - _BOTTOM, _WIDTH - _RIGHT
    most = max(10 * panel.least, *(p.lost for p in panel.points))
    decades = math.ceil(math.log10(most / panel.least))

    def x(bits: float) -> float:
        return _LEFT + (right - _LEFT) * (bits - _LEAST_BITS) / (_MOST_BITS - _LEAST_BITS)

    def y(lost: float) -> float:
        share = math.log10(max(lost, panel.least) / panel.least) / decades
        return bottom - (bottom - _TOP) * share

    parts = [
        _text(_LEFT, 22, panel.title, style="title"),
        _text((_LEFT + right) / 2, _PANEL - 10, "bits a weight", "middle"),
        f'<g transform="translate(16 {(_TOP + bottom) / 2:.0f}) rotate(-90)">'
        f"{_text(0, 0, panel.what, 'middle')}</g>",
    ]
    for bits in range(_LEAST_BITS + 1, _MOST_BITS, 2):
        parts.append(_line(x(bits), _TOP, x(bits), bottom))
        parts.append(_text(x(bits), bottom + 18, str(bits), "middle"))
    for decade in range(decades + 1):
        lost = panel.least * 10**decade
        parts.append(_line(_LEFT, y(lost), right, y(lost)))
        label = f"{lost:g}" if decade else f"\u2264 {lost:g}"
        parts.append(_text(_LEFT - 8, y(lost) + 4, label, "end"))
    curve = sorted((p for p in panel.points if p.on_curve), key=lambda p: p.bits)
    if curve:
        steps = "L".join(f"{x(p.bits):.1f} {y(p.lost):.1f}" for p in curve)
        parts.append(f'<path class="curve" d="M{steps}"/>')
    for point in panel.points:
        parts.append(_mark(x(point.bits), y(point.lost), point.is_ours))
    return [*parts, *_names([(x(p.bits), y(p.lost), p) for p in panel.points])]


def _mark(x: float, y: float, is_ours: bool) -> str:
    if is_ours:
        return f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    return f'<rect class="rival" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'


def _names(places: Sequence[tuple[float, float, Point]]) -> list[str]:
    """Names right of their marks. Names that would touch move up, with a line to the mark."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []  # left, right, height
    for x, y, point in sorted(places, key=lambda each: (-each[1], each[0])):
        width = 6.2 * len(point.name)
        left = x + 12 if x + 12 + width < _WIDTH else x - 12 - width
        height = y
        while any(
            left < end and begin < left + width and abs(height - other) < _LINE
            for begin, end, other in taken
        ):
            height -= 2
        taken.append((left, left + width, height))
        if y - height > 3:
            parts.append(_line(x, y, left if left > x else left + width, height, "name"))
        parts.append(_text(left, height + 4, point.name))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> str:
    return f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
