"""The picture of the README: what a plain hub stores of a family of models, and what DeltaHub does.

`python -m benchmarks.demo.run --picture docs/family.svg` draws it from the figures of its run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 760
_BAR: Final = 24  # height of one bar, in units of the picture
_STEP: Final = 34  # from one bar to the next
_LABELS: Final = 150  # room for the models' names
_LONGEST: Final = 420  # the bar of all files together
_TOP: Final = 64
# Colours for a light page, and for a dark one.
_STYLE: Final = """
  text { fill: #1f2328; font: 14px sans-serif }
  .title { font-weight: bold; font-size: 16px }
  .quiet { fill: #59636e }
  .plain { fill: #c8cfd6 }
  .ours { fill: #0b6e4f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .quiet { fill: #9198a1 }
    .plain { fill: #4a525b }
    .ours { fill: #3fb68b }
  }
"""


@dataclass(frozen=True)
class Stored:
    """One model: the bytes of its files, and the bytes that the hub keeps for it alone."""

    name: str
    file_bytes: int
    stored_bytes: int


def draw_family(models: Sequence[Stored], total_stored_bytes: int) -> str:
    """An SVG with a row for each model and one for all; it follows the page's colour scheme.

    total_stored_bytes: all objects of the hub, so also what packs need beside their frames.
    """
    total = Stored("together", sum(model.file_bytes for model in models), total_stored_bytes)
    scale = _LONGEST / total.file_bytes
    height = _TOP + _STEP * (len(models) + 1) + 34
    share = 100 * total.stored_bytes / total.file_bytes
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(_sentence(total, len(models) - 1))}</title>",
        f"<style>{_STYLE}</style>",
        _text(0, 20, f"A base and {len(models) - 1} fine-tunes, in MB", "title"),
        '<rect class="plain" x="0" y="34" width="14" height="14" rx="2"/>',
        _text(20, 46, "files, as a plain hub stores them"),
        '<rect class="ours" x="270" y="34" width="14" height="14" rx="2"/>',
        _text(290, 46, "what DeltaHub stores"),
    ]
    for row, model in enumerate([*models, total]):
        y = _TOP + _STEP * row + (16 if model is total else 0)
        plain, ours = model.file_bytes * scale, model.stored_bytes * scale
        figures = f"{model.file_bytes / 1e6:.1f}  →  {model.stored_bytes / 1e6:.1f}"
        if model is total:
            figures += f"  ({share:.0f} %)"
        parts += [
            _text(0, y + 17, model.name, "title" if model is total else ""),
            _bar("plain", y, plain),
            _bar("ours", y, ours),
            _text(_LABELS + plain + 12, y + 17, figures),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _sentence(total: Stored, n_fine_tunes: int) -> str:
    return (
        f"A base and {n_fine_tunes} fine-tunes: {total.file_bytes / 1e6:.1f} MB of files, "
        f"of which DeltaHub stores {total.stored_bytes / 1e6:.1f} MB"
    )


def _bar(style: str, y: float, width: float) -> str:
    place = f'x="{_LABELS}" y="{y}" width="{width:.1f}" height="{_BAR}"'
    return f'<rect class="{style}" {place} rx="3"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{kind}>{escape(text)}</text>'
