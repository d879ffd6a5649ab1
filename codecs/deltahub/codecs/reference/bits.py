"""Bit fields of a prelude: least significant bit first, from the lowest bit of each byte on."""

from collections.abc import Iterable

from deltahub.codecs.errors import CorruptFrame
from deltahub.codecs.protocol import Buffer

Field = tuple[int, int]  # (value, its number of bits)


def require(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise CorruptFrame(fault)


def write_fields(fields: Iterable[Field]) -> bytes:
    """The bytes of the fields, one after another; zero bits fill the last byte."""
    number = at = 0
    for value, n_bits in fields:
        number |= value % (1 << n_bits) << at
        at += n_bits
    return number.to_bytes((at + 7) // 8, "little")


class BitReader:
    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self._number = int.from_bytes(data, "little")
        self._at = 0

    def take(self, n_bits: int) -> int:
        begin, self._at = self._at, self._at + n_bits
        require(self._at <= 8 * len(self._data), "the prelude ends early")
        return (self._number >> begin) % (1 << n_bits)

    def take_unary(self, most: int) -> int:
        """The number of 1 bits before the next 0 bit, which is read too; at most `most`."""
        ones = 0
        while self.take(1):
            ones += 1
            require(ones <= most, f"more than {most} bits 1 in a row")
        return ones

    def take_rest(self) -> bytes:
        """The bytes after the current one, whose remaining bits must be zero."""
        require(self.take(-self._at % 8) == 0, "bits that fill a byte are not zero")
        return self._data[self._at // 8 :]
