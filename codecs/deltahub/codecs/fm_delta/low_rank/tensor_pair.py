"""A fine-tuned and a base tensor as floats."""

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs._native import count_exponents, greatest_magnitude, subtract
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, Words
from deltahub.codecs.words import WORD_KINDS

Floats: TypeAlias = NDArray[np.floating[Any]]
F64: TypeAlias = NDArray[np.float64]

_CHUNK: Final = 1 << 18  # elements that are floats at a time: they stay in a core's caches
_HELD: Final = 1 << 20  # elements of a pair, at most, all of whose differences are held
_SAMPLED: Final = 1 << 20  # elements, about, that are looked at all at once
_COUNTED: Final = 1 << 14  # elements, about, whose exponents are counted


class Room:
    """Memory that is filled again and again: fresh one takes longer than what fills it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], real: np.dtype[Any]) -> Floats:
        """An array of any contents, until the next one is asked for."""
        n_bytes = prod(shape) * real.itemsize
        if n_bytes > self._bytes.nbytes:
            self._bytes = np.empty(n_bytes, np.uint8)
        array: Floats = self._bytes[:n_bytes].view(real).reshape(shape)
        return array


_F32: Final = np.dtype(np.float32)


class Pair:
    """A fine-tuned and a base tensor of the same dtype, as floats where they are asked for."""

    def __init__(self, dtype: DType, source: Words, base: Words, room: Room | None = None) -> None:
        self.dtype, self.source, self.base = dtype, source, base
        self.kind, self.words = WORD_KINDS[dtype], FLOAT_WORDS[dtype]
        self.rows, self.columns = source.shape
        # Float32 would round what the last digits of F32 words say of a product.
        self.real = np.dtype(np.float64 if dtype is DType.F32 else np.float32)
        self._room = room or Room()

    @property
    def size(self) -> int:
        return int(self.source.size)

    def is_wild(self) -> bool:
        """Whether a finite word is so large (2^30 and more) that squares of sums may overflow.

        No trained weight is: words that are, are random bits or no floats at all.
        """
        large = min(self.words.bias + 31, self.words.max_exponent) << self.words.mantissa_bits
        both = (self.source, self.base)
        return any(greatest_magnitude(self.kind, words) >= large for words in both)

    def differences(
        self, rows: slice, columns: slice = slice(None), real: np.dtype[Any] | None = None
    ) -> Floats:
        """Source less base; 0 where either is no number. columns: without a step.

        The next call fills the same array again.
        """
        real = real or self.real
        if real == _F32 and columns == slice(None) and self._held is not None:
            return self._held[rows]
        source = self.source[rows, columns]
        difference = self._room.array(source.shape, real)
        subtract(self.kind, source, self.base[rows, columns], difference)
        return difference

    @cached_property
    def _held(self) -> Floats | None:
        """All differences in float32, of a small pair: once is cheaper than part by part."""
        if self.size > _HELD:
            return None
        difference = np.empty(self.source.shape, np.float32)
        subtract(self.kind, self.source, self.base, difference)
        return difference

    def chunks(self, real: np.dtype[Any] | None = None) -> Iterator[tuple[slice, Floats]]:
        """All rows, so many at a time that their floats are few, with their differences."""
        n_rows = max(1, _CHUNK // self.columns)
        for start in range(0, self.rows, n_rows):
            rows = slice(start, min(start + n_rows, self.rows))
            yield rows, self.differences(rows, real=real)

    def part(self, rows: slice) -> "Pair":
        """These rows of the pair, not copied."""
        return Pair(self.dtype, self.source[rows], self.base[rows], self._room)

    def sample(self) -> slice:
        """Some of the rows, to look at them all at once."""
        n_rows = max(1, min(64, _SAMPLED // self.columns))
        return slice(None, None, -(-self.rows // n_rows))

    @cached_property
    def ulp_shares(self) -> tuple[F64, F64]:
        """The ulps that occur in some of the rows, and how often: shares of 1."""
        n_rows = max(16, min(64, _COUNTED // self.columns))
        some = self.source[:: -(-self.rows // n_rows)]
        counts = np.zeros(self.words.max_exponent + 1, np.int64)
        count_exponents(self.kind, some, counts)
        counts[1] += counts[0]  # as far from the next word
        counts[0] = 0
        exponents = np.flatnonzero(counts)
        ulps = np.ldexp(1.0, exponents - self.words.bias - self.words.mantissa_bits)
        return ulps, counts[exponents] / counts.sum()

    @cached_property
    def rounding(self) -> float:
        """The mean square of what rounding the source words has added to the difference."""
        ulps, shares = self.ulp_shares
        return float((shares * ulps**2).sum()) / 12

    def noise_strength(self, rows: int) -> float:
        """How strong the strongest component of the rounding is in so many of the rows."""
        return float(np.sqrt(self.rounding) * (np.sqrt(rows) + np.sqrt(self.columns)))

    @cached_property
    def changed_share(self) -> float:
        """How many of the rows have changed at all: a share of 1, of some of them."""
        some = slice(None, None, -(-self.rows // max(16, _COUNTED // self.columns)))
        return float((self.source[some] != self.base[some]).any(axis=1).mean())

    def floats(self, words: Words) -> Floats:
        """The words as numbers, in an array of their own."""
        if self.dtype is DType.BF16:
            wide = words.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return words.view(np.float16 if self.dtype is DType.F16 else np.float32).astype(self.real)

    def rounded(self, numbers: Floats) -> Words:
        """The words nearest to numbers; about so: those of BF16 are rounded to F32 before."""
        if self.dtype is DType.F16:
            return numbers.astype(np.float16).view(np.uint16)
        words = numbers.astype(np.float32).view(np.uint32)
        if self.dtype is DType.F32:
            return words
        words += 0x7FFF + ((words >> 16) & 1)
        words >>= 16
        return words.astype(np.uint16)
