"""Weights as whole numbers times a step for each row, whose entropy is low (EntQuant).

Format: codecs/spec/neuzip.md, section 4. Putzky, Genzel, Mollenhauer et al., "Float8@2bits: Entropy
Coding Enables Data-Free Model Compression", arXiv 2601.22787. Which steps are good ones is the
encoder's choice (deltahub.methods.exporting.entquant); here they are given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from deltahub.codecs._native import count_infinite, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, InvalidInput
from deltahub.codecs.exports.parts import Part, check_contents, check_raw, frame_of
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, encode_frame
from deltahub.codecs.frames.view import open_frame
from deltahub.codecs.ids import ZERO_ID
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.words import WORD_KINDS

Words = npt.NDArray[np.unsignedinteger[Any]]

INTEGERS, STEPS = "integers", "steps"
# Elements of a slice are whole rows of at most so many elements together.
MAX_COLUMNS: Final = 1 << 22
MOST: Final = 127
# The last finite word, by dtype: those whose elements can be rounded.
_MANTISSA_BITS: Final = {DType.F32: 23, DType.F16: 10, DType.BF16: 7}
_LAST: Final = {DType.F32: 0x7F7FFFFF, DType.F16: 0x7BFF, DType.BF16: 0x7F7F}
# The integer that each byte stands for.
_BY_BYTE: Final = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
_MAGNITUDES: Final = np.abs(_BY_BYTE)
# Elements that are computed at once, so that what lies between stays in the cache.
_CHUNK: Final = 1 << 16
# Codecs that may be smallest for a slice.
_CODECS: Final = frozenset({"fm_delta", "zstd", "raw"})


@dataclass(frozen=True)
class IntegerCoding:
    """How a weight is coded as integers. columns: the elements of a row, which share a step."""

    dtype: DType
    columns: int

    # Before they are entropy coded. A reader has no choice.
    bits: ClassVar[int] = 8
    levels: ClassVar[tuple[int, ...]] = (8,)
    block: ClassVar[int] = 0
    is_lossless: ClassVar[bool] = False
    parts: ClassVar[tuple[str, ...]] = (INTEGERS, STEPS)

    def __post_init__(self) -> None:
        """InvalidInput unless an encoder may choose it."""
        if self.dtype not in _LAST:
            raise InvalidInput(f"{self.dtype.name} is not coded as integers: it is coded lossless")
        if not 1 <= self.columns <= MAX_COLUMNS:
            raise InvalidInput(
                f"a row of {self.columns} elements: integers have 1 to {MAX_COLUMNS} a row"
            )

    @property
    def slice_elements(self) -> int:
        """Whole rows, at most MAX_COLUMNS elements."""
        return MAX_COLUMNS // self.columns * self.columns

    def needed(self, bits: int) -> tuple[str, ...]:
        """All parts. InvalidInput for bits that it cannot be read at."""
        if bits not in self.levels:
            raise InvalidInput(f"a weight of integers is read at {self.bits} bits, not {bits}")
        return self.parts


def encode_integers(
    how: IntegerCoding, words: memoryview, steps: Buffer, threads: int = 1
) -> tuple[dict[str, bytes], memoryview]:
    """(part -> frame, the elements as a reader gets them) of a slice.

    words: whole rows of finite elements, in their dtype. steps: a word of the same dtype for each
    row, which is finite and not negative. InvalidInput for others.
    """
    rows, rest = divmod(len(words), how.dtype.itemsize * how.columns)
    found = np.frombuffer(steps, _unsigned(how.dtype))
    if rest or not 1 <= rows * how.columns <= how.slice_elements or len(found) != rows:
        raise InvalidInput(
            f"{len(words)} bytes and {len(found)} steps: a slice has whole rows of {how.columns}"
            f" elements, at most {how.slice_elements}, and a step for each row"
        )
    if not (found <= _LAST[how.dtype]).all():
        raise InvalidInput("a step is negative, infinite or NaN")
    n_infinite = count_infinite(WORD_KINDS[how.dtype], words)
    if n_infinite:
        raise InvalidInput(f"{n_infinite} elements are infinite or NaN: code the weight lossless")
    integers = integers_of(how, words, found)
    parts = {
        INTEGERS: _frame_of_rows(integers, threads),
        STEPS: frame_of(how.dtype, memoryview(found.tobytes()), "raw", threads),
    }
    decoded = memoryview(bytearray(len(words)))
    multiply(how.dtype, integers, found, decoded)
    return parts, decoded


def open_integers(how: IntegerCoding, part: str, frame: Buffer, count: int) -> Part:
    """A part of a slice of `count` elements. CorruptFrame unless the frame holds just that part."""
    opened = Part(*open_frame(frame))
    if part == STEPS:
        check_contents(part, opened, how.dtype, count // how.columns)
        check_raw(part, opened)
        return opened
    check_contents(part, opened, DType.I8, count)
    header = opened.view.header
    if header.codec not in _CODECS:
        raise CorruptFrame(f"the part {part} is a frame of {header.codec}")
    if header.base is not None and header.base.base_ids():
        raise CorruptFrame(f"the part {part} has a tensor as base, in place of zeros")
    return opened


def decode_integers(
    how: IntegerCoding,
    parts: Mapping[str, Part],
    span: tuple[int, int],
    out: memoryview,
    threads: int = 1,
) -> None:
    """Fill `out` with elements [begin, end) of a slice. CorruptFrame for parts that changed."""
    (begin, end), columns, size = span, how.columns, how.dtype.itemsize
    first, last = begin // columns, -(-end // columns)
    integers = bytearray((last - first) * columns)
    parts[INTEGERS].decode_range(first * columns, last * columns, memoryview(integers), threads)
    steps = np.frombuffer(parts[STEPS].bytes_of(first * size, last * size), _unsigned(how.dtype))
    if not (steps <= _LAST[how.dtype]).all():
        raise CorruptFrame("the part steps has one that is negative, infinite or NaN")
    rows = np.frombuffer(integers, np.int8).reshape(-1, columns)
    if (begin, end) == (first * columns, last * columns):
        multiply(how.dtype, rows, steps, out)
        return
    room = memoryview(bytearray(len(integers) * size))
    multiply(how.dtype, rows, steps, room)
    at = begin - first * columns
    out[:] = room[at * size : (at + end - begin) * size]


def multiply(dtype: DType, integers: npt.NDArray[np.int8], steps: Words, out: memoryview) -> None:
    """Fill `out` with words of step x integer, rounded once. integers: rows. steps: a word a row.

    A row has at most 256 different products, which are computed once and looked up.
    """
    rows, columns = integers.shape
    numbers = integers.view(np.uint8)
    target = np.frombuffer(out, _unsigned(dtype)).reshape(rows, columns)
    n_rows = max(1, _CHUNK // 256)
    for row in range(0, rows, n_rows):
        for i, table in enumerate(_products(dtype, steps[row : row + n_rows]), row):
            # Every byte is in the table; to clip is only faster than to check.
            np.take(table, numbers[i], out=target[i], mode="clip")


def _products(dtype: DType, steps: Words) -> Words:
    """The words of each step times the integer of each byte, by integers alone: neither the mode of
    the processor nor its kind shows.
    """
    mantissa = _MANTISSA_BITS[dtype]
    words = steps.astype(np.int64)[:, np.newaxis]
    fields = words >> mantissa
    significands = words + np.where(fields > 0, (1 - fields) << mantissa, 0)
    products = significands * np.arange(129)
    # How far a product exceeds a significand: an integer has up to eight bits.
    shifts = np.zeros_like(products)
    for bit in range(1, 9):
        shifts += products >= 1 << mantissa + bit
    odd = products >> shifts & 1
    # Half a unit of the kept bits, less one where the kept number is even: a carry rounds up.
    rounded = products + np.where(shifts > 0, (1 << shifts >> 1) - 1 + odd, 0) >> shifts
    magnitudes = (np.maximum(fields, 1) - 1 + shifts << mantissa) + rounded
    magnitudes = np.where(products > 0, np.minimum(magnitudes, _LAST[dtype]), 0)
    found = magnitudes[:, _MAGNITUDES]
    found |= np.where((_BY_BYTE < 0) & (found > 0), 1 << 8 * dtype.itemsize - 1, 0)
    made: Words = found.astype(_unsigned(dtype))
    return made


def nearest_words(dtype: DType, values: npt.NDArray[np.float64]) -> Words:
    """The words of numbers, rounded to the nearest, of two the even one, at most the last finite.

    values: 0, or normal numbers.
    """
    last, mantissa = _LAST[dtype], _MANTISSA_BITS[dtype]
    bits = np.ascontiguousarray(values).view(np.uint64)
    magnitudes = bits & np.uint64((1 << 63) - 1)
    drop = np.uint64(52 - mantissa)
    # Half a unit of the kept bits, less one where the kept number is even: a carry rounds up.
    odd = magnitudes >> drop & np.uint64(1)
    kept = magnitudes + odd + np.uint64((1 << (51 - mantissa)) - 1) >> drop
    bias = last >> mantissa + 1  # of the exponents of the dtype
    words = kept.astype(np.int64) - (1023 - bias << mantissa)
    # Below the smallest normal number, a word counts units of the smallest subnormal one.
    is_small = words < 1 << mantissa
    if is_small.any():
        units = np.abs(values[is_small]) * 2.0 ** (bias - 1 + mantissa)
        words[is_small] = np.rint(units).astype(np.int64)
    words = np.minimum(words, last) | (bits >> np.uint64(63)).astype(np.int64) << (
        8 * dtype.itemsize - 1
    )
    found: Words = words.astype(_unsigned(dtype))
    return found


def numbers_of(dtype: DType, words: Words) -> npt.NDArray[np.float64]:
    """The numbers of words."""
    values = np.empty(len(words))
    widen_words(WORD_KINDS[dtype], words.tobytes(), values)
    return values


def integers_of(how: IntegerCoding, words: memoryview, steps: Words) -> npt.NDArray[np.int8]:
    """The integers whose products with the steps are nearest."""
    integers = np.zeros((len(steps), how.columns), np.int8)
    row_bytes = how.dtype.itemsize * how.columns
    n_rows = max(1, _CHUNK // how.columns)
    factors = numbers_of(how.dtype, steps)
    for row in range(0, len(steps), n_rows):
        some = slice(row, row + n_rows)
        values = np.empty(integers[some].size)
        piece = words[row * row_bytes : (row + n_rows) * row_bytes]
        widen_words(WORD_KINDS[how.dtype], piece, values)
        # A row whose step is zero has zeros alone.
        divisors = np.where(factors[some] > 0, factors[some], np.inf)
        scaled = values.reshape(-1, how.columns) / divisors[:, np.newaxis]
        np.rint(scaled, out=scaled)
        np.clip(scaled, -MOST, MOST, out=scaled)
        integers[some] = scaled
    return integers


def _frame_of_rows(integers: npt.NDArray[np.int8], threads: int) -> bytes:
    """The smallest frame: fm_delta from zeros codes integers by their entropy, a class of rows at a
    time.
    """
    rows, columns = integers.shape
    data = memoryview(integers.tobytes())
    spec = TensorSpec(blake3(data).digest(), DType.I8, rows, columns)
    plan = BasePlan((BaseSegment(ZERO_ID, DType.I8, 0, len(data)),), is_cast=False)
    return encode_frame(
        spec,
        FrameRange(0, len(data), rows, columns),
        data,
        base=bytes(len(data)),
        plan=plan,
        codec="delta",
        threads=threads,
    )


def _unsigned(dtype: DType) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(f"<u{dtype.itemsize}")
