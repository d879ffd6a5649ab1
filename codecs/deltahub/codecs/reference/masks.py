"""masks in readable Python. The native kernels must give the same bytes.

Format: codecs/spec/masks.md. Python's floats are the doubles that the page speaks of.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from deltahub.codecs.casts import CASTABLE, cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer

_DOUBLE = struct.Struct("<d")


def scaled(dtype: DType, base: bytes, unified: bytes, scale: float) -> bytes:
    """The element whose mask is 1. base, unified: the bytes of one element each."""
    if scale == 1:
        return unified
    start, end = _value(dtype, base), _value(dtype, unified)
    return _rounded(dtype, start + scale * (end - start))


def bits_of(packed: Buffer) -> Iterator[int]:
    """The bits of a mask: the lowest of each byte first."""
    for byte in memoryview(packed).cast("B"):
        for place in range(8):
            yield byte >> place & 1


def decode(dtype: DType, base: bytes, unified: bytes, packed: Buffer, scale: float) -> bytes:
    """The elements of a task, from those of base and unified model and the packed bits."""
    bits, out, n = bits_of(packed), b"", dtype.itemsize
    for at in range(0, len(base), n):
        b, u = base[at : at + n], unified[at : at + n]
        out += b if b == u or next(bits) == 0 else scaled(dtype, b, u, scale)
    return out


def _value(dtype: DType, element: bytes) -> float:
    if dtype not in CASTABLE:
        magnitude = _magnitudes(dtype)[element[0] & 0x7F]
        return -magnitude if element[0] & 0x80 else magnitude
    out = bytearray(8)
    cast(element, dtype, DType.F64, memoryview(out))
    (value,) = _DOUBLE.unpack(out)
    return float(value)


def _rounded(dtype: DType, value: float) -> bytes:
    """The nearest element, ties to the even one."""
    if dtype not in CASTABLE:
        return bytes([_nearest(dtype, abs(value)) | (0x80 if str(value)[0] == "-" else 0)])
    out = bytearray(dtype.itemsize)
    cast(_DOUBLE.pack(value), DType.F64, dtype, memoryview(out))
    return bytes(out)


def _nearest(dtype: DType, value: float) -> int:
    magnitudes = _magnitudes(dtype)
    last = len(magnitudes) - 1  # the one after the largest finite word: infinity, or NaN
    if value >= magnitudes[last]:
        return last
    below = bisect_right(magnitudes, value) - 1
    middle = (Fraction(magnitudes[below]) + Fraction(magnitudes[below + 1])) / 2
    is_up = value > middle or (value == middle and below % 2 == 1)
    return below + is_up


@cache
def _magnitudes(dtype: DType) -> list[float]:
    """The values of the words of an F8 dtype without a sign, up to the first that is not finite."""
    mantissa_bits, bias, n_words = (3, 7, 0x80) if dtype is DType.F8_E4M3 else (2, 15, 0x7D)
    found = []
    for word in range(n_words):
        exponent, mantissa = divmod(word, 1 << mantissa_bits)
        significand = mantissa + (1 << mantissa_bits) if exponent else mantissa
        found.append(significand * 2.0 ** (max(exponent, 1) - bias - mantissa_bits))
    return found
