"""Words without the few that no product predicts: they would take all of its directions.

Nothing here is part of the format. What is left out keeps its place in the frame, without a
prediction.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs._native import line_energies
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, Words
from deltahub.codecs.words import WORD_KINDS

F32: TypeAlias = NDArray[np.float32]

_WILD: Final = 256.0  # times the median of the rows' sums of squares, or of the columns'
_MOST: Final = 16  # one in so many rows, or columns


@np.errstate(all="ignore")  # what overflows is wild
def tame(dtype: DType, source: Words, base: Words, rows: int, columns: int) -> Words | None:
    """`source` with the base's words in rows and columns that differ from it by far too much.

    Those of a row that was made anew, or in which a number is far off, or none. None where all is
    tame already, or more is wild than a few rows and columns. source, base: rows * columns words,
    unsigned.
    """
    if dtype not in FLOAT_WORDS or source.size == 0:
        return None
    tamed, near = source.reshape(rows, columns), base.reshape(rows, columns)
    by_row, by_column = _energies(dtype, tamed, near)
    wild_rows, wild_columns = _wild_lines(by_row), _wild_lines(by_column)
    n_rows = np.count_nonzero(wild_rows)
    if n_rows > rows // _MOST or n_rows + np.count_nonzero(wild_columns) == 0:
        return None
    tamed = tamed.copy()
    tamed[wild_rows] = near[wild_rows]
    if n_rows > 0:  # which may have made columns seem wild, or hidden those that are
        _, by_column = _energies(dtype, tamed, near)
        wild_columns = _wild_lines(by_column)
    if np.count_nonzero(wild_columns) > columns // _MOST:
        return None
    tamed[:, wild_columns] = near[:, wild_columns]
    return tamed.reshape(-1)


def _energies(dtype: DType, source: Words, base: Words) -> tuple[F32, F32]:
    """The sums of squares of the differences of each row, and of each column; of rows in which a
    number is none, infinity.
    """
    by_row, by_column = (
        np.empty(shape, np.float32) for shape in ((len(source), 1), (1, source.shape[1]))
    )
    line_energies(WORD_KINDS[dtype], source, base, by_row, by_column)
    return by_row[:, 0], by_column[0]


def _wild_lines(energies: F32) -> NDArray[np.bool_]:
    changed = energies[energies > 0]
    if len(changed) == 0:
        return np.zeros(len(energies), np.bool_)
    wild: NDArray[np.bool_] = ~(energies <= _WILD * np.median(changed))
    return wild
