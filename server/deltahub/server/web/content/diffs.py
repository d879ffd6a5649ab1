"""Differences of texts, line by line, in bounded time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

# Longer texts are not compared: the time grows faster than their lines.
MAX_BYTES: Final = 128 << 10
MAX_LINES: Final = 2000
_MAX_MIDDLE: Final = 800
_CONTEXT: Final = 3
_MAX_SHOWN: Final = 400
_MAX_LINE: Final = 500


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a difference. kind gap: lines that both have are left out here."""

    kind: Literal["same", "added", "removed", "gap"]
    old: int | None
    new: int | None
    text: str


@dataclass(frozen=True)
class TextDiff:
    """n_added, n_removed: lines. is_cut: some lines are left out at the end."""

    lines: Sequence[DiffLine]
    n_added: int
    n_removed: int
    is_cut: bool


def diff(before: str, after: str) -> TextDiff | None:
    """Return how two texts differ; None if they are too long to compare."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_LINES:
        return None
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    middle = old[first : len(old) - last], new[first : len(new) - last]
    if min(map(len, middle)) > _MAX_MIDDLE:
        return None
    lines = list(_with_context(_edits(old, new, first, last)))
    return TextDiff(
        lines[:_MAX_SHOWN],
        sum(line.kind == "added" for line in lines),
        sum(line.kind == "removed" for line in lines),
        len(lines) > _MAX_SHOWN,
    )


def _edits(old: Sequence[str], new: Sequence[str], first: int, last: int) -> Iterator[DiffLine]:
    for at in range(first):
        yield DiffLine("same", at + 1, at + 1, old[at])
    matcher = SequenceMatcher(None, old[first : len(old) - last], new[first : len(new) - last])
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            for k in range(i_end - i):
                at, to = first + i + k, first + j + k
                yield DiffLine("same", at + 1, to + 1, old[at])
            continue
        for at in range(first + i, first + i_end):
            yield DiffLine("removed", at + 1, None, old[at])
        for to in range(first + j, first + j_end):
            yield DiffLine("added", None, to + 1, new[to])
    for k in range(last, 0, -1):
        at, to = len(old) - k, len(new) - k
        yield DiffLine("same", at + 1, to + 1, old[at])


def _with_context(edits: Iterator[DiffLine]) -> Iterator[DiffLine]:
    """The changed lines with a few equal ones around them."""
    held: list[DiffLine] = []
    left = 0
    for line in edits:
        if line.kind == "same":
            if left:
                yield _cut(line)
                left -= 1
            else:
                held.append(line)
            continue
        if len(held) > _CONTEXT:
            yield DiffLine("gap", None, None, "")
        yield from map(_cut, held[-_CONTEXT:])
        held = []
        yield _cut(line)
        left = _CONTEXT


def _cut(line: DiffLine) -> DiffLine:
    if len(line.text) <= _MAX_LINE:
        return line
    return DiffLine(line.kind, line.old, line.new, line.text[:_MAX_LINE] + " ...")
