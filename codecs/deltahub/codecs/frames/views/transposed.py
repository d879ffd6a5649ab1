"""Transposed matrices as a base: which elements they are, and how a range of them is read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType

# A larger matrix would have to be read too often by those who read it in ranges.
MAX_MATRIX_BYTES: Final = 128 << 20
_CHUNK_BYTES: Final = 1 << 22  # source bytes held at once
# Smaller matrices are read and transposed many at once: one at a time costs more than its bytes.
_SMALL_MATRIX_BYTES: Final = 1 << 16
# Shorter rows are read whole, because one read costs as much as copying so many bytes.
_LONG_ROW_BYTES: Final = 1 << 14

_Words = npt.NDArray[np.unsignedinteger]

ReadSource = Callable[[int, memoryview], None]
"""read(first element, out): fill `out` with elements of the matrices, back to back as stored."""


@dataclass(slots=True, unsafe_hash=True)
class Transposed:
    """The transposes of matrices that lie back to back, from one of their elements on.

    rows, columns: of each matrix as it is stored; its transpose has `columns` rows. first: the
    element of the transposes, back to back, that the base begins with. It lies in the first matrix.
    """

    rows: int
    columns: int
    first: int = 0

    @property
    def size(self) -> int:
        """Elements of a matrix."""
        return self.rows * self.columns

    def fault(self, total: int, count: int, dtype: DType) -> str | None:
        """What is wrong with the view of `total` elements for a base of `count`, or None."""
        if self.rows < 2 or self.columns < 2:
            return "a transposed matrix has at least two rows and columns"
        if self.size * dtype.itemsize > MAX_MATRIX_BYTES:
            return f"a transposed matrix has at most {MAX_MATRIX_BYTES} bytes"
        if not 0 <= self.first < self.size:
            return "a view begins beyond its first matrix"
        if total != -(-(self.first + count) // self.size) * self.size:
            return "the matrices of a view are not those that its elements lie in"
        return None

    def segment_fault(self, dtype: DType, is_zeros: bool) -> str | None:
        """None: a transposed segment may be what any other segment may be."""
        return None

    def source_dtype(self, dtype: DType) -> DType:
        """The type that read() takes its elements in."""
        return dtype

    def part(self, start: int, count: int) -> tuple[int, int, "Transposed"]:
        """The matrices of elements [start, start + count): first element, elements, their view."""
        first = self.first + start
        begin = first // self.size * self.size
        end = -(-(first + count) // self.size) * self.size
        return begin, end - begin, replace(self, first=first - begin)

    def read(self, dtype: DType, start: int, read: ReadSource, out: memoryview) -> None:
        """Fill `out` with the view's elements from `start` on."""
        read_transposed(self, dtype.itemsize, start, read, out)


def read_transposed(
    view: Transposed, itemsize: int, start: int, read: ReadSource, out: memoryview
) -> None:
    """Fill `out` with the view's elements from `start` on.

    itemsize: bytes of an element, 1, 2, 4 or 8. Takes a buffer of 4 MiB; a matrix of long rows is
    read by the columns that are needed, one of short rows by rows.
    """
    target = np.frombuffer(out, f"<u{itemsize}")
    if view.size * itemsize <= _SMALL_MATRIX_BYTES:
        _read_small(view, view.first + start, read, target)
        return
    done = 0
    while done < len(target):
        matrix, place = divmod(view.first + start + done, view.size)
        column, row = divmod(place, view.rows)
        left = len(target) - done
        n_rows = min(view.rows - row, left)
        # A part of one column, or as many whole ones as there are.
        n_columns = 1 if n_rows < view.rows else min(view.columns - column, left // view.rows)
        n = n_rows * n_columns
        rectangle = target[done : done + n].reshape(n_columns, n_rows)
        _read_rectangle(view, matrix * view.size, row, column, read, rectangle)
        done += n


def _read_small(view: Transposed, first: int, read: ReadSource, out: _Words) -> None:
    """Fill `out` from element `first` of the transposes on, by whole matrices."""
    step = _CHUNK_BYTES // (view.size * out.itemsize)
    end = -(-(first + len(out)) // view.size)
    done = 0
    for matrix in range(first // view.size, end, step):
        chunk = np.empty((min(step, end - matrix), view.rows, view.columns), out.dtype)
        read(matrix * view.size, chunk.reshape(-1).data.cast("B"))
        found = chunk.transpose(0, 2, 1).reshape(-1)[max(0, first - matrix * view.size) :]
        n = min(len(found), len(out) - done)
        out[done : done + n] = found[:n]
        done += n


def _read_rectangle(
    view: Transposed, base: int, row: int, column: int, read: ReadSource, out: _Words
) -> None:
    """Fill `out`, shape (columns, rows), from this row and column on of the matrix at `base`."""
    (n_columns, n_rows), itemsize = out.shape, out.itemsize
    is_whole = n_columns >= view.columns // 2 or view.columns * itemsize <= _LONG_ROW_BYTES
    width, left = (view.columns, 0) if is_whole else (n_columns, column)
    step = max(1, _CHUNK_BYTES // (width * itemsize))
    chunk = np.empty((min(step, n_rows), width), out.dtype)
    for done in range(0, n_rows, step):
        rows = chunk[: min(step, n_rows - done)]
        if is_whole:
            read(base + (row + done) * width, rows.data.cast("B"))
        else:
            for i in range(len(rows)):
                at = base + (row + done + i) * view.columns + left
                read(at, rows[i].data.cast("B"))
        found = rows[:, column - left : column - left + n_columns]
        out[:, done : done + len(rows)] = found.T
