"""Words: bit patterns of elements as unsigned integers, and the order of a dtype's words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer

EXPONENT_BITS = {
    DType.F64: 11,
    DType.F32: 8,
    DType.F16: 5,
    DType.BF16: 8,
    DType.F8_E4M3: 4,
    DType.F8_E5M2: 5,
}


def signed(value: int, bits: int) -> int:
    """The value modulo 2^bits, from -2^(bits-1) to 2^(bits-1) - 1."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


@dataclass(frozen=True)
class Words:
    """The words of a dtype. Signed and unsigned integers of one width are coded in one way."""

    bits: int
    exponent_bits: int  # 0: integers

    @classmethod
    def of(cls, dtype: DType) -> "Words":
        return cls(8 * dtype.itemsize, EXPONENT_BITS.get(dtype, 0))

    def read(self, data: Buffer) -> list[int]:
        words: list[int] = np.frombuffer(data, dtype=f"<u{self.bits // 8}").tolist()
        return words

    def write(self, words: Sequence[int]) -> bytes:
        return np.array(words, dtype=f"<u{self.bits // 8}").tobytes()

    @property
    def is_float(self) -> bool:
        return self.exponent_bits > 0

    @property
    def mantissa_bits(self) -> int:
        return self.bits - 1 - self.exponent_bits if self.is_float else 0

    @property
    def max_exponent(self) -> int:
        """The highest exponent field: of infinities and NaNs, if the dtype has them."""
        return (1 << self.exponent_bits) - 1

    @property
    def sign(self) -> int:
        """The word with only the sign bit."""
        return 1 << (self.bits - 1)

    def exponent(self, word: int) -> int:
        """The exponent field as it is stored; 0 for integers."""
        return (word >> self.mantissa_bits) & self.max_exponent

    def mantissa(self, word: int) -> int:
        return word % (1 << self.mantissa_bits)

    def count(self, word: int, base: int) -> int:
        """The position of a float among all floats: 0 is the zero with the base's sign.

        Positions below 0 have the other sign. -1 is the other zero, so both zeros are neighbours.
        """
        on_side = signed(word ^ (base & self.sign), self.bits)
        return on_side if on_side >= 0 else on_side ^ (self.sign - 1)

    def delta(self, word: int, base: int) -> int:
        """The number of positions from the base to the word, as a signed integer of `bits` bits."""
        if not self.is_float:
            return signed(word - base, self.bits)
        return signed(self.count(word, base) - self.count(base, base), self.bits)

    def apply(self, base: int, delta: int) -> int:
        """The base, moved by `delta` positions."""
        if not self.is_float:
            return (base + delta) % (1 << self.bits)
        count = signed(self.count(base, base) + delta, self.bits)
        on_side = count if count >= 0 else count ^ (self.sign - 1)
        return on_side % (1 << self.bits) ^ (base & self.sign)
