"""One picture as SVG: losses over steps, a row of panels for each task, a panel for each rate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 820
_ROW: Final = 240  # height of a row of panels
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 58, 26
_HEAD, _FOOT = 30, 24  # above and below all rows
_GAP: Final = 10  # between panels
# Colours for a light page, and for a dark one. LoRA is dashed for readers who see no colours.
_STYLE: Final = """
  text { fill: #1f2328; font: 12px sans-serif }
  .title { font-weight: bold; font-size: 14px }
  .grid { stroke: #d0d7de }
  .curve { fill: none; stroke-width: 2 }
  .lora { stroke: #bc4c00; stroke-dasharray: 5 3 }
  .pissa { stroke: #0b6e4f }
  .band { stroke: none; opacity: 0.2 }
  .band.lora { fill: #bc4c00 }
  .band.pissa { fill: #0b6e4f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .grid { stroke: #30363d }
    .lora { stroke: #f0883e }
    .pissa { stroke: #3fb68b }
    .band.lora { fill: #f0883e }
    .band.pissa { fill: #3fb68b }
  }
"""


@dataclass(frozen=True)
class Point:
    """A loss after some steps: the mean over seeds, the smallest, the largest."""

    step: int
    mean: float
    least: float
    most: float


Curves = Mapping[str, Sequence[Point]]  # "LoRA" or "PiSSA" -> its points


@dataclass(frozen=True)
class Panels:
    """One task. by_rate: the curves of each learning rate."""

    title: str
    by_rate: Mapping[float, Curves]


def draw(rows: Sequence[Panels]) -> str:
    """Steps to the right, losses upwards on a logarithmic scale that a row shares.

    It follows the page's colour scheme.
    """
    height = _HEAD + _ROW * len(rows) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>Training loss over steps of LoRA and PiSSA, by learning rate</title>",
        f"<style>{_STYLE}</style>",
        *_legend(),
    ]
    for i, row in enumerate(rows):
        parts += [f'<g transform="translate(0 {_HEAD + i * _ROW})">', *_row(row), "</g>"]
    parts.append(_text(_WIDTH / 2, height - 8, "steps", "middle"))
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts = []
    for x, name in ((_LEFT, "LoRA"), (_LEFT + 110, "PiSSA")):
        parts.append(f'<path class="curve {name.lower()}" d="M{x} 18H{x + 34}"/>')
        parts.append(_text(x + 42, 22, name))
    parts.append(_text(_WIDTH - _RIGHT, 22, "mean and range of the seeds", "end"))
    return parts


def _row(row: Panels) -> list[str]:
    points = [p for curves in row.by_rate.values() for points in curves.values() for p in points]
    least = math.log(min(p.least for p in points))
    most = math.log(max(p.most for p in points))
    top, bottom = _TOP, _ROW - _BOTTOM

    def y(loss: float) -> float:
        return bottom - (bottom - top) * (math.log(loss) - least) / ((most - least) or 1)

    parts = [
        _text(_LEFT, 22, row.title, style="title"),
        f'<g transform="translate(16 {(top + bottom) / 2:.0f}) rotate(-90)">'
        f"{_text(0, 0, 'training loss', 'middle')}</g>",
    ]
    ticks = _ticks(min(p.least for p in points), max(p.most for p in points))
    parts += [_text(_LEFT - 8, y(tick) + 4, f"{tick:g}", "end") for tick in ticks]
    width = (_WIDTH - _LEFT - _RIGHT + _GAP) / len(row.by_rate)
    for i, (rate, curves) in enumerate(row.by_rate.items()):
        left, right = _LEFT + i * width, _LEFT + (i + 1) * width - _GAP
        parts.append(_text((left + right) / 2, top - 10, f"rate {rate:g}", "middle"))
        parts += [_line(left, y(tick), right, y(tick)) for tick in ticks]
        parts += [_line(x, top, x, bottom) for x in (left, right)]
        last = max(p.step for points in curves.values() for p in points)
        parts.append(_text(left, bottom + 18, "0"))
        parts.append(_text(right, bottom + 18, str(last), "end"))
        for name, curve in curves.items():
            xs = [left + (right - left) * p.step / last for p in curve]
            parts += _curve(name, xs, curve, y)
    return parts


def _ticks(least: float, most: float) -> list[float]:
    """Round losses to label, three or more: powers of ten, or steps between them."""
    powers = [10.0**e for e in range(-6, 4)]
    tenths = [k / 10 for k in range(10, 100)]
    for factors in ([1], [1, 2, 5], [1, 1.5, 2, 2.5, 3, 4, 5, 7], tenths):
        found = [f * power for power in powers for f in factors if least <= f * power <= most]
        if len(found) >= 3:
            break
    return found


def _curve(
    name: str, xs: Sequence[float], points: Sequence[Point], y: Callable[[float], float]
) -> list[str]:
    upper = [(x, y(p.most)) for x, p in zip(xs, points, strict=True)]
    lower = [(x, y(p.least)) for x, p in zip(xs, points, strict=True)]
    middle = [(x, y(p.mean)) for x, p in zip(xs, points, strict=True)]
    return [
        f'<path class="band {name.lower()}" d="{_path([*upper, *reversed(lower)])}Z"/>',
        f'<path class="curve {name.lower()}" d="{_path(middle)}"/>',
    ]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
