"""One picture as SVG: size against decode speed, every codec a point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 820, 470
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 56, 56
_OURS, _RIVAL, _TEXT, _GRID = "#0b6e4f", "#8a5a00", "#24292f", "#d0d7de"


@dataclass(frozen=True)
class Point:
    name: str
    size_percent: float
    decode_mb_per_s: float
    is_ours: bool


def draw(points: Sequence[Point], title: str) -> str:
    """Size to the right on a linear axis, speed upwards on a logarithmic one: best is top left."""
    most = 10 * math.ceil(max(p.size_percent for p in points) / 10)
    steps = [factor * 10.0**power for power in range(6) for factor in (1, 2, 5)]
    low = max(s for s in steps if s <= max(1, min(p.decode_mb_per_s for p in points)))
    high = min(s for s in steps if s > max(low, *(p.decode_mb_per_s for p in points)))

    def x(percent: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * percent / most

    def y(mb_per_s: float) -> float:
        share = math.log(mb_per_s / low) / math.log(high / low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="13" fill="{_TEXT}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 26, title, weight="bold", size=15),
        _text(_LEFT, 44, "best is top left"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "size, % of the file", "middle"),
        f'<g transform="translate(18 {_HEIGHT / 2:.0f}) rotate(-90)">'
        f"{_text(0, 0, 'decode, MB/s of one core', 'middle')}</g>",
    ]
    for percent in range(0, most + 1, 10):
        at = x(percent)
        parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM))
        parts.append(_text(at, _HEIGHT - _BOTTOM + 18, str(percent), "middle"))
    for step in (step for step in steps if low <= step <= high):
        at = y(step)
        parts.append(_line(_LEFT, at, _WIDTH - _RIGHT, at))
        parts.append(_text(_LEFT - 8, at + 4, f"{step:g}", "end"))
    # Names of the crowded left stand in a column of their own, each with a line to its point.
    column = x(most / 2)
    lowest = 0.0
    for point in sorted(points, key=lambda p: -p.decode_mb_per_s):
        px, py = x(point.size_percent), y(point.decode_mb_per_s)
        colour = _OURS if point.is_ours else _RIVAL
        at, label_x = py, px + 12
        if point.size_percent < most / 2:
            at = lowest = max(py, lowest + 17)
            label_x = column
            parts.append(_line(px, py, column - 6, at, colour))
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="6" fill="{colour}"/>')
        label = f"{point.name} ({point.size_percent:.1f} %)"
        parts.append(_text(label_x, at + 4, label, weight="bold" if point.is_ours else "normal"))
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _GRID) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", weight: str = "normal", size: int = 13
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
