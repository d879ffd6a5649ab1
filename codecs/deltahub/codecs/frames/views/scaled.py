"""Elements of a wider float type, scaled by groups and rounded to FP8, as a base."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType

# Types that F32 holds exactly, and what they may be rounded to.
WIDE: Final = frozenset({DType.F32, DType.F16, DType.BF16})
FP8: Final = frozenset({DType.F8_E4M3, DType.F8_E5M2})
MAX_MULTIPLIERS: Final = 1 << 16
# Exponent fields of multipliers, 2^-64 to 2^64: a subnormal F32 times any of them rounds to zero.
MIN_EXPONENT: Final = 127 - 64
MAX_EXPONENT: Final = 127 + 64
_MAX_ELEMENTS: Final = 1 << 40
_CHUNK: Final = 1 << 15  # elements of a step: its temporaries stay in the cache
_NAN: Final = 0x7F
# Mantissa bits, exponent of the smallest number, and code of the largest one.
_FORMATS: Final = {DType.F8_E4M3: (3, -9, 0x7E), DType.F8_E5M2: (2, -16, 0x7B)}

ReadSource = Callable[[int, memoryview], None]
"""read(first element, out): fill `out` with elements of the source as F32."""

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


@dataclass(slots=True, unsafe_hash=True)
class Scaled:
    """The elements of a matrix, each times the multiplier of its group, rounded to FP8.

    columns: of the matrix. group_rows, group_columns: of a group; the groups at the edges may be
    smaller. multipliers: F32 words, little endian, of all groups that the base reaches into, row by
    row. first: the element that the base begins with. It lies in the first row of groups.
    """

    columns: int
    group_rows: int
    group_columns: int
    multipliers: bytes
    first: int = 0

    @property
    def _groups_across(self) -> int:
        return -(-self.columns // self.group_columns)

    def fault(self, total: int, count: int, dtype: DType) -> str | None:
        """What is wrong with the view of `total` elements for a base of `count`, or None."""
        if dtype not in FP8:
            return f"{dtype.name} is no type that elements are scaled to"
        if total != count:
            return f"base segments hold {total} elements, the frame {count}"
        if not 1 <= self.group_columns <= self.columns <= _MAX_ELEMENTS:
            return "a group of a view has no columns or too many"
        if not 1 <= self.group_rows <= _MAX_ELEMENTS:
            return "a group of a view has no rows or too many"
        if not 0 <= self.first < self.group_rows * self.columns:
            return "a view begins beyond its first groups"
        n = -(-(self.first + count) // (self.group_rows * self.columns)) * self._groups_across
        if n > MAX_MULTIPLIERS or len(self.multipliers) != 4 * n:
            return f"a view of {n} groups with {len(self.multipliers)} bytes of multipliers"
        exponents = self._words() >> 23  # with the sign above them
        if int(exponents.min()) < MIN_EXPONENT or int(exponents.max()) > MAX_EXPONENT:
            return "a multiplier is negative, too small or too large"
        return None

    def segment_fault(self, dtype: DType, is_zeros: bool) -> str | None:
        """What is wrong with a segment of this type in the frame's plan; None if nothing."""
        if is_zeros or dtype not in WIDE:
            return f"{'zeros' if is_zeros else dtype.name} cannot be scaled"
        return None

    def source_dtype(self, dtype: DType) -> DType:
        """The type that read() takes its elements in."""
        return DType.F32

    def part(self, start: int, count: int) -> tuple[int, int, "Scaled"]:
        """The source of elements [start, start + count): first element, elements, their view."""
        skipped, first = divmod(self.first + start, self.group_rows * self.columns)
        n = -(-(first + count) // (self.group_rows * self.columns))
        size = 4 * self._groups_across
        multipliers = self.multipliers[skipped * size : (skipped + n) * size]
        return start, count, replace(self, first=first, multipliers=multipliers)

    def read(self, dtype: DType, start: int, read: ReadSource, out: memoryview) -> None:
        """Fill `out` with the view's elements from `start` on, in memory of a few mebibytes."""
        target = np.frombuffer(out, np.uint8)
        words = np.empty(min(_CHUNK, len(target)), "<u4")
        for done in range(0, len(target), _CHUNK):
            some = words[: len(target) - done]
            read(start + done, some.data.cast("B"))
            of_each = self._of_each(start + done, len(some))
            target[done : done + len(some)] = scale(some, of_each, dtype)

    def _words(self) -> U32:
        return np.frombuffer(self.multipliers, "<u4")

    def _of_each(self, start: int, count: int) -> U32:
        """The multiplier of each element from `start` on."""
        words = self._words().reshape(-1, self._groups_across)
        begin, skipped = divmod(self.first + start, self.columns)
        if self.columns > _CHUNK:  # a whole row would take too much memory
            rows, columns = np.divmod(np.arange(skipped, skipped + count), self.columns)
            of_each = words[(begin + rows) // self.group_rows, columns // self.group_columns]
            return np.asarray(of_each)
        rows = np.arange(begin, begin + -(-(skipped + count) // self.columns))
        across = np.repeat(words[rows // self.group_rows], self.group_columns, axis=1)
        return np.asarray(across[:, : self.columns].reshape(-1)[skipped : skipped + count])


def scale(words: U32, multipliers: U32, dtype: DType) -> U8:
    """FP8 codes of F32 words times F32 multipliers: the nearest number, ties to even.

    words, multipliers: shape (n,); exponents of multipliers as MIN_EXPONENT and MAX_EXPONENT say.
    What is beyond the largest number becomes that number, also an infinity. A NaN becomes 7f, with
    its sign. Zeros and what rounds to zero keep their sign. By integers alone, so that every
    machine and every rounding mode gives the same.
    """
    mantissa_bits, lowest, largest = _FORMATS[dtype]
    magnitude = words & np.uint32(0x7FFFFFFF)
    exponent = (magnitude >> 23).astype(np.int64)
    significand = ((magnitude & np.uint32(0x7FFFFF)) | np.uint32(0x800000)).astype(np.int64)
    factor = ((multipliers & np.uint32(0x7FFFFF)) | np.uint32(0x800000)).astype(np.int64)
    product = significand * factor  # 47 or 48 bits
    is_zero = exponent == 0  # also what is too small for every multiplier
    # The value is product x 2^power; its last place that counts is 2^last.
    power = exponent + (multipliers >> 23).astype(np.int64) - 300
    last = np.maximum(power + 46 + (product >> 47) - mantissa_bits, lowest)
    drop = np.minimum(last - power, 50)  # of 50 bits and more, less than a half is left
    # Half of the last place, less one where that is even: what is above a half carries.
    product += ((product >> drop) & 1) + ((np.int64(1) << (drop - 1)) - 1)
    kept = product >> drop
    # `kept` has the hidden bit of a normal number, which adds one to the exponent field.
    code = np.minimum(((last - lowest) << mantissa_bits) + kept, largest).astype(np.uint8)
    code[is_zero] = 0
    code[magnitude > 0x7F800000] = _NAN
    return np.asarray(code | (words >> 24).astype(np.uint8) & np.uint8(0x80))
