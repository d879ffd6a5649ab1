"""Bytes against fidelity: which method keeps most of the fine-tunes within a budget."""

from collections.abc import Sequence
from html import escape
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.sizes import human_size


class Candidate(BaseModel):
    """What a method would make of the fine-tunes. Errors and cosines are means over the tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    n_bytes: int = Field(description="Encoded bytes of the result, without the base.")
    relative_error: float
    cosine: float
    worst_error: float = Field(description="The relative error of the worst task.")
    accuracy: float | None = Field(
        default=None, description="Share of examples that are answered exactly, over the tasks."
    )
    is_static: bool = Field(description="One checkpoint for all tasks, instead of one for each.")


class Comparison(BaseModel):
    """All methods, the smallest first, and the choice within the budget: the highest accuracy where
    it was measured, else the smallest error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    files_bytes: int = Field(description="The weight files of all fine-tunes, as they are.")
    fine_tunes_bytes: int = Field(description="All fine-tunes as the hub stores them now.")
    budget_bytes: int | None
    candidates: list[Candidate]
    choice: str | None = Field(description="None if no method is within the budget.")


def compare(
    candidates: Sequence[Candidate], files_bytes: int, fine_tunes_bytes: int, budget: float | None
) -> Comparison:
    """budget: percent of files_bytes; None for no limit."""
    limit = None if budget is None else round(files_bytes * budget / 100)
    within = [each for each in candidates if limit is None or each.n_bytes <= limit]
    best = min(
        within,
        key=lambda each: (-(each.accuracy or 0.0), each.relative_error, each.n_bytes),
        default=None,
    )
    return Comparison(
        files_bytes=files_bytes,
        fine_tunes_bytes=fine_tunes_bytes,
        budget_bytes=limit,
        candidates=sorted(candidates, key=lambda each: (each.n_bytes, each.method)),
        choice=None if best is None else best.method,
    )


def to_lines(found: Comparison) -> list[str]:
    """The comparison as lines of text, with a bar for what each method keeps."""
    width = max(len(each.method) for each in found.candidates)
    lines = [
        f"the fine-tunes' files have {human_size(found.files_bytes)}, and take"
        f" {human_size(found.fine_tunes_bytes)} now, as lossless deltas"
    ]
    for each in found.candidates:
        kept = max(1 - each.relative_error, 0.0)
        share = each.n_bytes / max(found.files_bytes, 1)
        mark = " <- choice" if each.method == found.choice else ""
        lines.append(
            f"{each.method:<{width}}  {human_size(each.n_bytes):>9}  {share:>6.1%}"
            f"  error {each.relative_error:.3f}  cosine {each.cosine:.3f}"
            + ("" if each.accuracy is None else f"  right {each.accuracy:.1%}")
            + f"  {'#' * round(20 * kept):<20}{mark}"
        )
    if found.choice is None and found.budget_bytes is not None:
        lines.append(f"no method takes at most {human_size(found.budget_bytes)}")
    return lines


_WIDTH: Final = 640
_HEIGHT: Final = 360
_LEFT: Final = 60
_BOTTOM: Final = 40


def to_svg(found: Comparison) -> str:
    """The picture: bytes to the right, what is kept (1 - relative error) upwards."""
    most = max([each.n_bytes for each in found.candidates] + [found.budget_bytes or 1])

    def x(n_bytes: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 120) * n_bytes / most

    def y(kept: float) -> float:
        return 20 + (_HEIGHT - _BOTTOM - 20) * (1 - kept)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_LEFT} 20V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}" fill="none" stroke="#666"/>',
        f'<text x="{_WIDTH - 20}" y="{_HEIGHT - 12}" text-anchor="end">bytes of the result:'
        f" right end {human_size(most)}</text>",
        '<text x="12" y="14">1 - relative error</text>',
    ]
    for kept in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<text x="{_LEFT - 8}" y="{y(kept) + 4:.1f}" text-anchor="end">{kept}</text>')
    if found.budget_bytes is not None:
        at = x(found.budget_bytes)
        parts.append(
            f'<path d="M{at:.1f} 20V{_HEIGHT - _BOTTOM}" stroke="#999" stroke-dasharray="4 3"/>'
            f'<text x="{at + 4:.1f}" y="32">budget</text>'
        )
    for each in found.candidates:
        kept = max(1 - each.relative_error, 0.0)
        fill = "#c0392b" if each.method == found.choice else "#2c6fbb"
        parts.append(
            f'<circle cx="{x(each.n_bytes):.1f}" cy="{y(kept):.1f}" r="4" fill="{fill}"/>'
            f'<text x="{x(each.n_bytes) + 7:.1f}" y="{y(kept) + 4:.1f}">{escape(each.method)}'
            "</text>"
        )
    return "\n".join([*parts, "</svg>", ""])
