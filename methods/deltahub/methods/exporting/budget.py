"""Bits for each weight within a budget, by the errors that were measured.

The sum over all weights of elements x relative squared error becomes as small as sizes allow, by
the greedy choice along each weight's convex hull, as for any sum of independent costs (Shoham and
Gersho, "Efficient bit allocation for an arbitrary set of quantizers", 1988).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltahub.methods.kinds.weights.choice import refuse_small_budget


@dataclass(frozen=True)
class Trial:
    """A weight at some number of mantissa bits: bits, bytes, and relative error (Frobenius)."""

    bits: int
    size_bytes: int
    error: float


def choose_bits(
    trials: Mapping[str, Sequence[Trial]], counts: Mapping[str, int], budget: float
) -> dict[str, int]:
    """Mantissa bits of each weight, so that all together take at most `budget` bits an element.

    trials: of each weight. counts: its elements. CannotExport if the smallest trials take more.
    """
    hulls = {name: _hull(each, counts[name]) for name, each in trials.items()}
    chosen = dict.fromkeys(hulls, 0)
    n_elements = sum(counts[name] for name in hulls)
    room = budget * n_elements / 8 - sum(hull[0].size_bytes for hull in hulls.values())
    if room < 0:
        refuse_small_budget(budget, budget - 8 * room / n_elements)
    steps = sorted(
        (_gain(hull[i], hull[i + 1], counts[name]), name, i)
        for name, hull in hulls.items()
        for i in range(len(hull) - 1)
    )
    for _, name, i in reversed(steps):
        cost = hulls[name][i + 1].size_bytes - hulls[name][i].size_bytes
        # A step that does not fit ends its weight's steps; smaller ones of other weights may fit.
        if chosen[name] == i and cost <= room:
            chosen[name] = i + 1
            room -= cost
    return {name: hulls[name][i].bits for name, i in chosen.items()}


def _gain(low: Trial, high: Trial, count: int) -> float:
    """How much less is lost for each byte more."""
    return count * (low.error**2 - high.error**2) / (high.size_bytes - low.size_bytes)


def _hull(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The trials on the lower convex hull of error over size, by size."""
    hull: list[Trial] = []
    for each in sorted(trials, key=lambda trial: (trial.size_bytes, trial.error)):
        if hull and each.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1], count) <= _gain(hull[-1], each, count):
            hull.pop()
        hull.append(each)
    return hull
