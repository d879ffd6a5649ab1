"""A plan of a collection in short, as commands and pages show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltahub.registry.maintenance.gc.plan import Item, Plan

# Plan.reasons in words.
WHY: Final = {
    "ref removed": "a branch or tag was removed",
    "squashed": "history was squashed",
    "file deleted": "files were deleted from all history",
    "pruned": "old revisions were pruned",
    "repository deleted": "a repository was deleted",
    "never committed": "no commit named them in time",
    "replaced": "a smaller form replaced them, or no commit named them in time",
}


@dataclass(frozen=True)
class Line:
    """One kind of thing in a plan. n_bytes: None where rows have none of their own."""

    text: str
    n: int
    n_bytes: int | None


def lines_of(plan: Plan, *, delete_unknown: bool = False) -> list[Line]:
    """What the plan deletes and keeps, without what it has none of."""
    unknown = "to delete" if delete_unknown else "reported only: --delete-unknown deletes them"
    found = (
        _line("expired uploads to delete", plan.uploads),
        _line("expired xorbs to delete", plan.xorbs),
        Line("dropped revisions to forget", len(plan.revisions), None),
        Line("files that no revision lists", len(plan.files), None),
        Line("tensors that nothing needs", len(plan.tensors), plan.tensor_bytes),
        _line("packs never finished, to condemn", plan.abandoned),
        _line("empty packs to condemn", plan.condemn),
        _line("packs to write anew without their dead bytes", plan.repack),
        _line("condemned packs to delete", plan.delete),
        _line("second copies that are not needed, to delete", plan.copies),
        _line("leftover local files to delete", plan.leftovers),
        _line("puts of dead processes to end", plan.unfinished),
        _line("ends of uploads by dead processes to delete", plan.tails),
        Line("unnamed bases, kept because differences need them", plan.anchors, plan.anchor_bytes),
        _line("packs with too few dead bytes to write anew", plan.sparse),
        _line(f"objects that no row knows, {unknown}", plan.unknown),
    )
    return [each for each in found if each.n]


def _line(text: str, items: Sequence[Item]) -> Line:
    return Line(text, len(items), sum(item.size_bytes for item in items))
