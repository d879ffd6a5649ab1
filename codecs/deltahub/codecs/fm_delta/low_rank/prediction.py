"""The low-rank prediction of words from base words and two thin matrices of 16-bit integers.

`predict` is part of the format (codecs/spec/fm_delta.md) and uses only integer arithmetic. The
search for the matrices is not part of the format: see search.py.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.dtypes import DType

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
I16: TypeAlias = NDArray[np.int16]
I64: TypeAlias = NDArray[np.int64]

MAX_RANK: Final = 64
MAX_PRODUCT: Final = 1 << 30  # the format limits shifted products to this magnitude


@dataclass(frozen=True)
class FloatWords:
    """The fields of a float dtype's words, and its guard bits below the last mantissa bit."""

    exponent_bits: int
    mantissa_bits: int
    guard_bits: int

    @property
    def max_exponent(self) -> int:
        """The exponent field of infinities and NaNs."""
        return (1 << self.exponent_bits) - 1

    @property
    def bias(self) -> int:
        return self.max_exponent >> 1

    @property
    def unit_of_floor(self) -> int:
        """LowRank.floor minus log2 of the product's unit."""
        return self.bias + self.mantissa_bits + self.guard_bits

    @property
    def sign(self) -> int:
        """The word with only the sign bit."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    def exponents(self, words: Words) -> I64:
        """The exponent fields."""
        return (words.astype(np.int64) >> self.mantissa_bits) & self.max_exponent


FLOAT_WORDS: Final = {
    DType.BF16: FloatWords(8, 7, 14),
    DType.F16: FloatWords(5, 10, 11),
    DType.F32: FloatWords(8, 23, 6),
}


@dataclass(frozen=True, eq=False)
class LowRank:
    """Two integer matrices. Their product times 2^(floor - bias - mantissa bits - guard bits) is
    added to the base.

    left: (rows, rank), right: (rank, columns), C-contiguous. floor: c0 of the format, the exponent
    field of the product's unit, from 1 to the dtype's highest exponent field minus 1.
    is_rounded: the product is rounded to the dtype's precision before it is added, as for an
    adapter whose product was computed in that dtype.
    """

    left: I16
    right: I16
    floor: int
    is_rounded: bool = False

    @property
    def rank(self) -> int:
        return int(self.left.shape[1])

    def product(self, rows: slice | NDArray[np.intp] = slice(None)) -> I64:
        """The products of these rows, modulo 2^32 as the format has them: from -2^31 on."""
        # Float64 is exact below 2^53; 64 products of int16 stay below 2^36.
        exact = self.left[rows].astype(np.float64) @ self.right.astype(np.float64)
        return exact.astype(np.int64).astype(np.int32).astype(np.int64)


def predict(
    dtype: DType, base: Words, low_rank: LowRank, rows: slice | NDArray[np.intp] = slice(None)
) -> Words:
    """The base words plus the product, rounded to the nearest of the dtype, ties to even.

    dtype: a key of FLOAT_WORDS. base: unsigned words, (len(rows), columns).
    """
    words = FLOAT_WORDS[dtype]
    mantissa_bits, guard_bits = words.mantissa_bits, words.guard_bits
    stored = words.exponents(base)
    exponent = np.maximum(stored, 1)
    aligned = np.maximum(exponent, low_rank.floor)
    product = low_rank.product(rows)
    if low_rank.is_rounded:
        product = _rounded_product(product, mantissa_bits + 1)
    moved = product >> np.minimum(aligned - low_rank.floor, 31)
    moved = np.clip(moved, -MAX_PRODUCT, MAX_PRODUCT - 1)
    mantissa = base.astype(np.int64) & ((1 << mantissa_bits) - 1)
    mantissa |= (stored > 0).astype(np.int64) << mantissa_bits
    magnitude = (mantissa << guard_bits) >> np.minimum(aligned - exponent, 31)
    is_negative = (base & words.sign) != 0
    total = np.where(is_negative, -magnitude, magnitude) + moved
    rounded = _rounded(np.abs(total), aligned, words)
    is_below = np.where(total == 0, is_negative, total < 0)
    predicted = np.where(is_below, rounded | words.sign, rounded)
    is_kept = (stored == words.max_exponent) | (moved == 0)
    is_kept |= rounded >= words.max_exponent << mantissa_bits
    return np.where(is_kept, base, predicted.astype(base.dtype))


def _rounded_product(product: I64, digits: int) -> I64:
    """Products of 32 bits, rounded to at most `digits` significant bits; ties to even."""
    size = np.abs(product)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    down = np.maximum(length - digits, 0)
    quotient = size >> down
    rest, half = size - (quotient << down), (1 << down) >> 1
    rounds_up = (rest > half) | ((rest == half) & (half > 0) & (quotient % 2 == 1))
    signed: I64 = np.sign(product) * ((quotient + rounds_up) << down)
    return signed.astype(np.int32).astype(np.int64)  # modulo 2^32


def _rounded(magnitude: I64, aligned: I64, words: FloatWords) -> I64:
    """Magnitudes, in units of guard bits at the aligned exponents, as words without signs."""
    length = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)  # exact: below 2^53
    digits = words.mantissa_bits + 1 + words.guard_bits
    exponent = np.maximum(aligned + length - digits, 1)
    drop = exponent + words.guard_bits - aligned
    down, up = np.maximum(drop, 0), np.maximum(-drop, 0)
    quotient = magnitude >> down
    rest, half = magnitude - (quotient << down), (1 << down) >> 1
    # If no bits are dropped, rest and half are 0, and nothing is rounded up.
    rounds_up = (rest > half) | ((rest == half) & (half > 0) & (quotient % 2 == 1))
    magnitudes: I64 = ((exponent - 1) << words.mantissa_bits) + ((quotient + rounds_up) << up)
    return magnitudes
