"""masks in readable Python. The native kernels must give the same bytes.

Format: codecs/spec/masks.md. Python's floats are the doubles that the page speaks of.
"""

import struct
from collections.abc import Iterator

from deltahub.codecs.casts import cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer

_DOUBLE = struct.Struct("<d")


def scaled(dtype: DType, base: bytes, unified: bytes, scale: float) -> bytes:
    """The element whose mask is 1. base, unified: the bytes of one element each."""
    if scale == 1:
        return unified
    start, end = _value(dtype, base), _value(dtype, unified)
    moved = start + scale * (end - start)
    out = bytearray(dtype.itemsize)
    cast(_DOUBLE.pack(moved), DType.F64, dtype, memoryview(out))
    return bytes(out)


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
    out = bytearray(8)
    cast(element, dtype, DType.F64, memoryview(out))
    (value,) = _DOUBLE.unpack(out)
    return float(value)
