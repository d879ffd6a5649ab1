"""One picture as SVG: accuracies by method, a panel for each move, a small dot for each seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean
from typing import Final

_WIDTH: Final = 900
_NAMES: Final = 120  # width of the names, at the left of each panel
_LINE: Final = 20  # from one method to the next
_TOP, _BOTTOM, _GAP = 46, 34, 24
# Colours for a light page, and for a dark one.
_STYLE: Final = """
  text { fill: #1f2328; font: 12px sans-serif }
  .title { font-weight: bold }
  .grid { stroke: #d0d7de }
  .seed { fill: #59636e; opacity: 0.55 }
  .mean { fill: #0b6e4f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #30363d }
    .seed { fill: #9198a1 }
    .mean { fill: #3fb68b }
  }
"""


@dataclass(frozen=True)
class Mark:
    """A method's accuracies, % of each seed; none if it is not possible."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    title: str
    about: str
    marks: Sequence[Mark]


def draw(panels: Sequence[Panel]) -> str:
    """Two panels side by side, accuracies to the right. It follows the page's colour scheme."""
    height = _TOP + _BOTTOM + _LINE * max(len(panel.marks) for panel in panels)
    rows = -(-len(panels) // 2)
    box = f"0 0 {_WIDTH} {height * rows}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">',
        "<title>Accuracy of adapters after a move to a new base, by method</title>",
        f"<style>{_STYLE}</style>",
    ]
    for i, panel in enumerate(panels):
        place = (i % 2 * (_WIDTH + _GAP) // 2, i // 2 * height)
        parts += [f'<g transform="translate({place[0]} {place[1]})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    left, right = _NAMES, (_WIDTH - _GAP) // 2 - 12
    bottom = _TOP + _LINE * len(panel.marks)

    def x(percent: float) -> float:
        return left + (right - left) * percent / 100

    parts = [_text(8, 16, panel.title, style="title"), _text(8, 33, panel.about)]
    for percent in range(0, 101, 20):
        parts.append(f'<path class="grid" d="M{x(percent):.1f} {_TOP}L{x(percent):.1f} {bottom}"/>')
        parts.append(_text(x(percent), bottom + 16, str(percent), "middle"))
    for i, mark in enumerate(panel.marks):
        y = _TOP + _LINE * (i + 0.5)
        parts.append(_text(left - 8, y + 4, mark.name, "end"))
        if not mark.values:
            parts.append(_text(left + 6, y + 4, "not possible"))
            continue
        parts += [
            f'<circle class="seed" cx="{x(value):.1f}" cy="{y:.1f}" r="2.5"/>'
            for value in mark.values
        ]
        parts.append(f'<circle class="mean" cx="{x(mean(mark.values)):.1f}" cy="{y:.1f}" r="4.5"/>')
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
