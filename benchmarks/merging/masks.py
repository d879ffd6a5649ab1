"""Bits that a mask of EMR takes an element: packed, and the entropies of each mask and of all.

If masks of several tasks told much of each other, coding them together would pay.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.merging.methods import differences, mergeable
from benchmarks.merging.run import SUITES, TITLES
from benchmarks.merging.suite import Suite
from benchmarks.results_file import print_columns


def masks_of(suite: Suite, name: str) -> npt.NDArray[np.bool_]:
    """Tasks x elements that the unified model changes: whether the task has the elected sign."""
    vectors = differences(suite, name).reshape(len(suite.tasks), -1).numpy()
    agrees = vectors * np.where(vectors.sum(axis=0) > 0, 1.0, -1.0) > 0
    found: npt.NDArray[np.bool_] = agrees[:, agrees.any(axis=0)]
    return found


def entropy(shares: npt.NDArray[np.float64]) -> float:
    """In bits."""
    positive = shares[shares > 0]
    return float(-(positive * np.log2(positive)).sum())


def bits_of(suite: Suite) -> tuple[float, float]:
    """Bits a mask and element: entropy of each tensor's mask alone, and of all tasks' together."""
    n_tasks = len(suite.tasks)
    patterns = np.zeros(1 << n_tasks)
    alone = 0.0
    for name in mergeable(suite):
        masks = masks_of(suite, name)
        if masks.size == 0:
            continue
        codes = (masks * (1 << np.arange(n_tasks))[:, None]).sum(axis=0)
        patterns += np.bincount(codes, minlength=len(patterns))
        for mask in masks:
            share = mask.mean()
            alone += mask.size * entropy(np.array([share, 1 - share]))
    n = patterns.sum()
    return alone / (n * n_tasks), entropy(patterns / n) / n_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/merging"))
    arguments = parser.parse_args()
    rows = []
    for name, make in SUITES.items():
        alone, together = bits_of(make(arguments.models, 0))
        rows.append([TITLES[name], "1.000", f"{alone:.3f}", f"{together:.3f}"])
    print_columns(["suite", "packed", "each alone", "all together"], rows)


if __name__ == "__main__":
    main()
