"""What a tensor's difference looks like: a histogram, and a heat map of its blocks."""

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.methods.comparing.slices import Values

N_BINS: Final = 64
_EACH: Final = N_BINS // 2
# Half octaves of doubles, from the smallest to the largest.
_LOWEST: Final = -2150
_COUNT: Final = 4200
# Octaves below the largest block mean that the heat map tells apart, in this many steps.
OCTAVES: Final = 24.0
STEPS: Final = 254
MAX_SIDE: Final = 64
# Bytes of all heat maps of a comparison before they are compressed.
_MAX_MAPS: Final = 8 << 20


class Histogram:
    """Counts of a difference in symmetric logarithmic bins: half octaves, apart by sign.

    All half octaves of doubles are counted, so that one pass does without the range. Of these the
    32 below the largest difference are kept for each sign: the innermost bins also count all that
    is smaller. Differences of zero are counted apart.
    """

    def __init__(self) -> None:
        self._below = np.zeros(_COUNT, np.int64)
        self._above = np.zeros(_COUNT, np.int64)
        self._n_zero = 0

    def add(self, difference: Values) -> None:
        values = difference.ravel()
        self._n_zero += values.size - int(np.count_nonzero(values))
        for counts, chosen in (
            (self._below, values[values < 0]),
            (self._above, values[values > 0]),
        ):
            mantissa, exponent = np.frexp(np.abs(chosen))
            index = 2 * (exponent.astype(np.int64) - 1) + (mantissa >= np.sqrt(0.5)) - _LOWEST
            counts += np.bincount(index, minlength=_COUNT)

    def to_dict(self) -> dict[str, Any]:
        """{"zero", "top", "counts"}: counts are in order of the difference. The outermost bins end
        at -2^((top + 1) / 2) and 2^((top + 1) / 2).
        """
        used = np.flatnonzero(self._below + self._above)
        top = int(used[-1]) if used.size else -_LOWEST
        first = max(top - _EACH + 1, 0)
        below, above = (_window(each, first, top) for each in (self._below, self._above))
        counts = [*reversed(below), *above]
        return {"zero": self._n_zero, "top": top + _LOWEST, "counts": counts}


def _window(counts: npt.NDArray[np.int64], first: int, top: int) -> list[int]:
    kept = counts[first : top + 1].tolist()
    kept[0] += int(counts[:first].sum())
    return [0] * (_EACH - len(kept)) + [int(n) for n in kept]


def bin_edges(top: int) -> list[float]:
    """The 65 edges of the bins, of which the middle one is zero."""
    sides = [_power((top + 1 - step) / 2) for step in range(_EACH)]
    return [-edge for edge in sides] + [0.0] + sides[::-1]


def _power(exponent: float) -> float:
    return float(2.0**exponent) if exponent < sys.float_info.max_exp else sys.float_info.max


def side_of(n_changed: int) -> int:
    """Blocks along a side of the heat maps of so many tensors, which bounds their bytes."""
    return next((side for side in (64, 32, 16) if n_changed * side * side <= _MAX_MAPS), 8)


@dataclass(frozen=True)
class _Axis:
    """starts: the first index of each block."""

    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, size: int, side: int) -> "_Axis":
        n = max(1, min(size, side))
        return cls(np.arange(n, dtype=np.int64) * size // n)

    def blocks(self, begin: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(numbers of the blocks in [begin, end), where each begins, from `begin` on)"""
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        last = int(np.searchsorted(self.starts, end, side="left"))
        numbers = np.arange(first, last)
        return numbers, np.maximum(self.starts[first:last] - begin, 0)


class HeatMap:
    """Means of the absolute difference over the blocks of a matrix, at most `side` a side."""

    def __init__(self, rows: int, columns: int, side: int = MAX_SIDE) -> None:
        self._rows, self._columns = _Axis.of(rows, side), _Axis.of(columns, side)
        self._sums = np.zeros((len(self._rows.starts), len(self._columns.starts)))
        heights = np.diff(self._rows.starts, append=rows)
        self._sizes = np.outer(heights, np.diff(self._columns.starts, append=columns))

    def add(self, row: int, column: int, difference: Values) -> None:
        """Add the part of the difference whose first element is there."""
        if not difference.size:
            return
        height, width = difference.shape
        down, down_at = self._rows.blocks(row, row + height)
        across, across_at = self._columns.blocks(column, column + width)
        sums = np.add.reduceat(np.abs(difference), across_at, axis=1)
        sums = np.add.reduceat(sums, down_at, axis=0)
        self._sums[np.ix_(down, across)] += sums

    def means(self) -> Values:
        means: Values = self._sums / np.maximum(self._sizes, 1)
        return means

    def to_dict(self) -> dict[str, Any]:
        """{"rows", "columns", "largest", "cells"}: cells has a byte for each block, in base 64.

        255 is the largest mean, and each step less is OCTAVES / STEPS of an octave; 0: below all.
        """
        means = self.means()
        largest = float(means.max(initial=0.0))
        steps = np.zeros(means.shape, np.uint8)
        if largest > 0:
            with np.errstate(divide="ignore"):
                away = np.log2(means / largest) * (STEPS / OCTAVES)
            steps = np.clip(np.round(255 + away), 0, 255).astype(np.uint8)
        return {
            "rows": means.shape[0],
            "columns": means.shape[1],
            "largest": largest,
            "cells": base64.b64encode(steps.tobytes()).decode(),
        }


def block_means(heat: dict[str, Any]) -> list[list[float]]:
    """The means of a heat map, from HeatMap.to_dict."""
    steps: Sequence[int] = base64.b64decode(heat["cells"])
    width, largest = heat["columns"], heat["largest"]
    means = [largest * 2.0 ** ((step - 255) * OCTAVES / STEPS) if step else 0.0 for step in steps]
    return [means[at : at + width] for at in range(0, len(means), width)]
