"""Compares one tensor of two models, which is read in slices."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.frames.encode import shape_to_rows
from deltahub.methods.comparing.picture import HeatMap, Histogram
from deltahub.methods.comparing.slices import Read, Slice, Values
from deltahub.methods.comparing.spectrum import Spectrum
from deltahub.methods.comparing.sums import Sums

# A difference of at most so many elements is kept in memory for the iterations of its spectrum;
# the tensors of a larger one are read a second time.
KEPT_ELEMENTS: Final = 1 << 25
# Elements of a row that is never divided: slices of matrices with shorter rows are whole rows.
WHOLE_ROW: Final = 1 << 22
SHARES: Final = (0.9, 0.99)


@dataclass(frozen=True)
class Compared:
    """numbers: of the tensor, as the report has them. detail: its histogram and heat map."""

    numbers: dict[str, Any]
    detail: dict[str, Any]


def compare_tensor(shape: tuple[int, ...], read: Read, side: int) -> Compared:
    """Compare two floating-point tensors of one shape. side: of the heat map, in blocks."""
    rows, columns = shape_to_rows(shape)
    has_rank = len(shape) == 2 and min(shape) > 1 and columns <= WHOLE_ROW
    spectrum = Spectrum(rows, columns) if has_rank else None
    kept = _Kept(rows, columns) if has_rank and rows * columns <= KEPT_ELEMENTS else None
    sums, histogram, heat = Sums(), Histogram(), HeatMap(rows, columns, side)
    for part in read():
        difference = sums.add(part.first, part.second, part.n_same)
        histogram.add(difference)
        heat.add(part.row, part.column, difference)
        if spectrum is not None and difference.any():
            spectrum.add(difference)
        if kept is not None:
            kept.set(part, difference)
    ranks: list[int | None] = [None for _ in SHARES]
    if spectrum is not None and sums.difference2 > 0:
        ranks = _ranks(spectrum, sums, kept, read)
    numbers: dict[str, Any] = {
        "n_same": sums.n_same,
        "n_odd": sums.n_odd,
        "norm": sums.first2**0.5,
        "change": sums.difference2**0.5,
        "relative": sums.relative,
        "largest": sums.largest,
        "cosine": sums.cosine,
        "mean": sums.mean,
        "deviation": sums.deviation,
        "rank_90": ranks[0],
        "rank_99": ranks[1],
        "rank_limit": None if spectrum is None or sums.difference2 == 0 else spectrum.limit,
    }
    # Squares of the largest doubles are infinite, which no JSON has.
    numbers = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }
    return Compared(numbers, {"histogram": histogram.to_dict(), "heat": heat.to_dict()})


class _Kept:
    """A difference in single precision, for more than one pass over it."""

    def __init__(self, rows: int, columns: int) -> None:
        self._values: npt.NDArray[np.float32] = np.zeros((rows, columns), np.float32)

    def set(self, part: Slice, difference: Values) -> None:
        height, width = difference.shape
        place = (slice(part.row, part.row + height), slice(part.column, part.column + width))
        self._values[place] = difference

    def add_to(self, spectrum: Spectrum) -> None:
        step = max(1, (1 << 20) // self._values.shape[1])
        for at in range(0, len(self._values), step):
            spectrum.add(self._values[at : at + step].astype(np.float64))


def _ranks(spectrum: Spectrum, sums: Sums, kept: _Kept | None, read: Read) -> list[int | None]:
    # One more iteration makes the ranks of slowly falling spectra more exact, where it is cheap.
    for _ in range(1 if kept is None else 2):
        spectrum.turn()
        if kept is not None:
            kept.add_to(spectrum)
            continue
        for part in read():
            spectrum.add(Sums().add(part.first, part.second, 0))
    return spectrum.ranks(sums.difference2, SHARES)
