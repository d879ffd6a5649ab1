"""Casts between float types by integer arithmetic, so that all machines give the same bits.

Rule (cast rule 1 of a frame): round to nearest, ties to even; overflow becomes infinity;
denormals are kept on both sides; zeros and infinities keep their sign. A NaN keeps its sign and
as many leading bits of its payload as fit, zero-filled, and becomes quiet (its top payload bit is
set), so that no NaN turns into an infinity.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.protocol import Buffer

CASTABLE: Final = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})

_WORDS: Final = {8: "<u8", 4: "<u4", 2: "<u2"}
_CHUNK: Final = 1 << 16  # elements of a step: its temporaries stay in the cache

U64 = NDArray[np.uint64]
Words = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class _Format:
    bits: int
    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def quiet(self) -> int:
        return 1 << (self.mantissa_bits - 1)


_FORMATS: Final = {
    DType.F64: _Format(64, 11, 52),
    DType.F32: _Format(32, 8, 23),
    DType.F16: _Format(16, 5, 10),
    DType.BF16: _Format(16, 8, 7),
}


def cast(source: Buffer, source_dtype: DType, dtype: DType, out: memoryview) -> None:
    """Fill `out` with the elements of `source`, cast to another float type.

    source, out: contiguous bytes of the same number of elements. InvalidInput if they are not, or
    if a dtype is not in CASTABLE.
    """
    if not {source_dtype, dtype} <= CASTABLE:
        raise InvalidInput(f"{source_dtype.name} is not cast to {dtype.name}")
    words = np.frombuffer(source, _WORDS[source_dtype.itemsize])
    target = np.frombuffer(out, _WORDS[dtype.itemsize])
    if len(words) != len(target):
        raise InvalidInput(f"{len(words)} elements to cast, room for {len(target)}")
    if source_dtype == dtype:
        target[:] = words
    elif source_dtype.itemsize == 2:
        np.take(_table(source_dtype, dtype), words, out=target, mode="clip")
    else:
        for i in range(0, len(words), _CHUNK):
            target[i : i + _CHUNK] = _cast_words(words[i : i + _CHUNK], source_dtype, dtype)


@cache
def _table(source_dtype: DType, dtype: DType) -> Words:
    every = np.arange(1 << 16, dtype=np.uint64)
    return _convert(every, _FORMATS[source_dtype], _FORMATS[dtype]).astype(_WORDS[dtype.itemsize])


def _cast_words(words: Words, source_dtype: DType, dtype: DType) -> Words:
    if source_dtype == DType.F32 and dtype == DType.BF16:
        return _f32_to_bf16(words)
    return _convert(words.astype(np.uint64), _FORMATS[source_dtype], _FORMATS[dtype])


def _f32_to_bf16(words: Words) -> Words:
    """The most frequent cast: the exponents are the same, so rounding is one addition."""
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
    is_nan = (words & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (words >> 16) | 0x40, rounded)


def _convert(words: U64, source: _Format, target: _Format) -> U64:
    """Any format to any other, by way of (sign, exponent, 53-bit significand); rounds once."""
    sign = (words >> np.uint64(source.bits - 1)) << np.uint64(target.bits - 1)
    magnitude = words & np.uint64((1 << (source.bits - 1)) - 1)
    finite = _round(*_unpack(magnitude, source), target)
    payload = magnitude & np.uint64((1 << source.mantissa_bits) - 1)
    shift = target.mantissa_bits - source.mantissa_bits
    moved = payload << np.uint64(shift) if shift >= 0 else payload >> np.uint64(-shift)
    result = np.where(magnitude == source.infinity, np.uint64(target.infinity), finite)
    nan = moved | np.uint64(target.infinity | target.quiet)
    return sign | np.where(magnitude > source.infinity, nan, result)


def _unpack(magnitude: U64, source: _Format) -> tuple[NDArray[np.int64], U64]:
    """(e, m) of the value m * 2**e, where m has exactly 53 bits or is 0."""
    exponent = (magnitude >> np.uint64(source.mantissa_bits)).astype(np.int64)
    mantissa = magnitude & np.uint64((1 << source.mantissa_bits) - 1)
    hidden = np.uint64(1 << source.mantissa_bits)
    significand = np.where(exponent > 0, mantissa | hidden, mantissa)
    power = np.maximum(exponent, 1) - source.bias - source.mantissa_bits
    # Shift the top bit up to bit 52: denormals need up to 52 places, in steps of powers of two.
    for step in (32, 16, 8, 4, 2, 1):
        is_low = (significand >> np.uint64(53 - step)) == 0
        significand = np.where(is_low, significand << np.uint64(step), significand)
        power = np.where(is_low, power - step, power)
    return power, significand


def _round(power: NDArray[np.int64], significand: U64, target: _Format) -> U64:
    """The bits of m * 2**e in the target format, without a sign: nearest, ties to even."""
    # The exponent of the last mantissa bit, which is never below that of denormals.
    lowest = 1 - target.bias - target.mantissa_bits
    last = np.maximum(power + 52 - target.mantissa_bits, lowest)
    # A shift of 54 or more leaves less than half a unit, which rounds to zero.
    drop = np.minimum(last - power, 54).astype(np.uint64)
    kept = significand >> drop
    rest = significand & ((np.uint64(1) << drop) - np.uint64(1))
    half = np.where(drop > 0, np.uint64(1) << (np.maximum(drop, 1) - np.uint64(1)), np.uint64(0))
    up = (drop > 0) & ((rest > half) | ((rest == half) & ((kept & np.uint64(1)) == 1)))
    kept = kept + up.astype(np.uint64)
    # `kept` has the hidden bit of a normal number: the sum adds it to the exponent field, which is
    # one too small. A mantissa that rounded up to a power of two carries in the same way.
    field = (last - lowest).astype(np.uint64)
    result = (field << np.uint64(target.mantissa_bits)) + kept
    return np.where(significand == 0, np.uint64(0), np.minimum(result, np.uint64(target.infinity)))
