"""How the elements of a weight become an export's parts, and parts become elements again.

Format: codecs/spec/neuzip.md. Hao, Cao, Mou, "NeuZip", arXiv 2410.20650: exponents are entropy
coded, and a lossy export keeps only the highest mantissa bits of each element (section 3.4), after
each block of elements was divided by its largest fraction. DeltaHub rounds once where the paper
rounds three times, and to even on ties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from blake3 import blake3

from deltahub.codecs._native import (
    block_scales,
    count_infinite,
    join_planes,
    pack_plane,
    round_words,
)
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CorruptFrame, InvalidInput
from deltahub.codecs.exports.integers import IntegerCoding, decode_integers, open_integers
from deltahub.codecs.exports.parts import Part, check_contents, check_raw, frame_of
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, encode_frame
from deltahub.codecs.frames.view import open_frame
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.words import WORD_KINDS

MANTISSA_BITS: Final = {
    DType.F64: 52,
    DType.F32: 23,
    DType.F16: 10,
    DType.BF16: 7,
    DType.F8_E4M3: 3,
    DType.F8_E5M2: 2,
}
# Dtypes whose elements can be rounded, and whose mantissa bits can lie in planes.
ROUNDED: Final = frozenset({DType.F32, DType.F16, DType.BF16})
DEFAULT_BLOCK: Final = 512
MIN_BLOCK, MAX_BLOCK = 8, 4096
# Elements that are coded together: whole blocks, and whole bytes of planes.
SLICE_ELEMENTS: Final = 1 << 22

WORDS, SCALES = "words", "scales"


def plane_name(bits: int) -> str:
    """The part with the mantissa bits that a reader of `bits` bits needs beyond the part before."""
    return f"m{bits}"


@dataclass(frozen=True)
class Coding:
    """How a weight is coded.

    bits: the mantissa bits that are kept. levels: the numbers of mantissa bits that a reader may
    ask for, ascending; the last one is `bits`. block: elements of a block with a scale of its own,
    or 0 for a weight that was not divided.
    """

    dtype: DType
    bits: int
    levels: tuple[int, ...]
    block: int

    def __post_init__(self) -> None:
        """InvalidInput unless an encoder may choose it."""
        most = MANTISSA_BITS.get(self.dtype)
        if most is None:
            raise InvalidInput(f"{self.dtype.name} has no mantissa: exports code floats")
        if not 0 <= self.bits <= most:
            raise InvalidInput(f"{self.dtype.name} has {most} mantissa bits, not {self.bits}")
        levels = self.levels
        if not levels or levels[-1] != self.bits or list(levels) != sorted({*levels}):
            raise InvalidInput(f"levels {list(levels)} do not ascend to {self.bits}")
        if levels[0] < 0:
            raise InvalidInput(f"{levels[0]} is no number of mantissa bits")
        if self.dtype not in ROUNDED and (self.block or levels != (most,)):
            raise InvalidInput(
                f"{self.dtype.name} is coded lossless, in one part: only"
                f" {', '.join(sorted(each.name for each in ROUNDED))} are rounded"
            )
        if self.block and not (
            MIN_BLOCK <= self.block <= MAX_BLOCK and self.block & (self.block - 1) == 0
        ):
            raise InvalidInput(
                f"a block of {self.block} elements: it is a power of two from {MIN_BLOCK} to"
                f" {MAX_BLOCK}"
            )
        if self.block and self.is_lossless:
            raise InvalidInput("a lossless weight is not divided: its block is 0")

    @property
    def is_lossless(self) -> bool:
        return self.bits == MANTISSA_BITS[self.dtype]

    @property
    def slice_elements(self) -> int:
        return SLICE_ELEMENTS

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in the order of the file: a reader of fewer bits reads fewer."""
        planes = tuple(plane_name(level) for level in self.levels[1:])
        return (WORDS, *((SCALES,) if self.block else ()), *planes)

    def needed(self, bits: int) -> tuple[str, ...]:
        """The parts that a reader of `bits` mantissa bits needs. InvalidInput if no level has so
        many.
        """
        if bits not in self.levels:
            levels = ", ".join(map(str, self.levels))
            raise InvalidInput(
                f"the weight was exported to be read at {levels} mantissa bits, not {bits}"
            )
        unneeded = {plane_name(level) for level in self.levels if level > bits}
        return tuple(part for part in self.parts if part not in unneeded)

    def fill(self, bits: int) -> int:
        """The mantissa bits that a reader of `bits` bits puts in place of those it leaves out.

        The values that share `bits` bits lie from half a unit of the kept bits below the first of
        them to half a unit above the last. These bits are the middle, as far as the dtype has it.
        """
        if bits == self.bits:
            return 0
        unused = MANTISSA_BITS[self.dtype] - self.bits
        n_values = 1 << (self.bits - bits)
        return (n_values - 1) << (unused - 1) if unused else n_values >> 1

    def planes(self, bits: int) -> list[tuple[int, int, int]]:
        """(level, lowest bit, width) of the planes up to `bits`."""
        most = MANTISSA_BITS[self.dtype]
        pairs = zip(self.levels, self.levels[1:], strict=False)
        return [(high, most - high, high - low) for low, high in pairs if high <= bits]


# However a weight is coded.
AnyCoding = Coding | IntegerCoding


def lossless(dtype: DType, also: Sequence[int] = ()) -> Coding:
    """A coding that keeps every bit. also: as `coding`."""
    return coding(dtype, MANTISSA_BITS[dtype], 0, also)


def coding(dtype: DType, bits: int, block: int, also: Sequence[int] = ()) -> Coding:
    """The coding that keeps `bits` mantissa bits, or all if the dtype has no more.

    also: fewer bits that the same file may be read at; each costs a little space and time.
    """
    most = MANTISSA_BITS.get(dtype, 0)
    bits = min(bits, most)
    fewer = {level for level in also if level < bits} if dtype in ROUNDED else set()
    return Coding(dtype, bits, (*sorted(fewer), bits), 0 if bits == most else block)


def encode_slice(
    how: Coding, words: memoryview, threads: int = 1
) -> tuple[dict[str, bytes], bytearray | memoryview]:
    """(part -> frame, the elements as a reader of all bits gets them).

    words: 1 to SLICE_ELEMENTS elements, in their dtype. InvalidInput if one is infinite or NaN,
    which only a lossless coding of one level takes: a reader of fewer bits would get other values.
    """
    kind = WORD_KINDS[how.dtype]
    count, rest = divmod(len(words), how.dtype.itemsize)
    if rest or not 1 <= count <= SLICE_ELEMENTS:
        raise InvalidInput(
            f"{len(words)} bytes of {how.dtype.name}: a slice has 1 to {SLICE_ELEMENTS} elements"
        )
    if len(how.levels) > 1 or not how.is_lossless:
        n_infinite = count_infinite(kind, words)
        if n_infinite:
            raise InvalidInput(
                f"{n_infinite} elements are infinite or NaN: code the weight lossless, at one level"
            )
    parts: dict[str, bytes] = {}
    kept: memoryview = words
    scales: bytearray | None = None
    if not how.is_lossless:
        kept = memoryview(bytearray(len(words)))
        if how.block:
            scales = bytearray(-(-count // how.block))
            block_scales(kind, words, how.block, memoryview(scales))
        round_words(kind, words, how.bits, scales, how.block or MAX_BLOCK, kept, threads)
    first = kept
    if len(how.levels) > 1:
        first = _without_low_bits(how.dtype, kept, how.levels[0])
    parts[WORDS] = frame_of(how.dtype, first, "neuzip_lossless", threads)
    if scales is not None:
        parts[SCALES] = frame_of(DType.U8, memoryview(scales), "raw", threads)
    for level, low, width in how.planes(how.bits):
        plane = memoryview(bytearray(-(-count * width // 8)))
        pack_plane(kind, kept, low, width, plane)
        parts[plane_name(level)] = frame_of(DType.U8, plane, "raw", threads)
    if scales is not None:
        join_planes(kind, kept, [], 0, scales, how.block, threads)
    return parts, kept


def open_part(how: AnyCoding, part: str, frame: Buffer, count: int) -> Part:
    """A part of a slice of `count` elements. CorruptFrame unless the frame holds just that part."""
    if isinstance(how, IntegerCoding):
        return open_integers(how, part, frame, count)
    opened = Part(*open_frame(frame))
    check_contents(part, opened, *_contents(how, part, count))
    if part != WORDS:
        check_raw(part, opened)
    elif opened.view.header.codec not in ("neuzip_lossless", "raw"):
        raise CorruptFrame(f"the part {part} is a frame of {opened.view.header.codec}")
    if part not in (WORDS, SCALES):
        used = count * _width(how, part) % 8
        if used and opened.body[-1] >> used:
            raise CorruptFrame(f"the part {part} has bits after its last element")
    return opened


def decode_slice(
    how: AnyCoding,
    parts: Mapping[str, Part],
    out: memoryview,
    bits: int | None = None,
    threads: int = 1,
) -> None:
    """Fill `out` with a slice's elements. parts: at least `how.needed(bits)`.

    bits: None for all that were kept. With fewer, an element is the middle of the interval that
    its bits stand for. InvalidInput if no level has so many bits; CorruptFrame for parts that no
    encoder writes, or that changed.
    """
    count = parts[how.parts[0]].view.header.count
    decode_elements(how, parts, (0, count), out, bits, threads)


def decode_elements(
    how: AnyCoding,
    parts: Mapping[str, Part],
    span: tuple[int, int],
    out: memoryview,
    bits: int | None = None,
    threads: int = 1,
) -> None:
    """Fill `out` with elements [begin, end) of a slice, from the blocks that hold them; else as
    decode_slice.
    """
    wanted = how.bits if bits is None else bits
    how.needed(wanted)
    (begin, end), size, target = span, how.dtype.itemsize, out.cast("B")
    count = parts[how.parts[0]].view.header.count
    if not 0 <= begin < end <= count or len(target) != (end - begin) * size:
        raise InvalidInput(
            f"{len(target)} bytes for elements {begin} to {end} of a slice of {count}"
        )
    if isinstance(how, IntegerCoding):
        decode_integers(how, parts, span, target, threads)
        return
    # Scales are of whole blocks, and eight elements fill whole bytes of every plane.
    block = how.block or MIN_BLOCK
    low, high = begin // block * block, min(count, -(-end // block) * block)
    room = target if (low, high) == span else memoryview(bytearray((high - low) * size))
    parts[WORDS].decode_range(low * size, high * size, room, threads)
    planes = [
        (
            lowest,
            width,
            parts[plane_name(level)].bytes_of(low * width // 8, -(-high * width // 8)),
        )
        for level, lowest, width in how.planes(wanted)
    ]
    scales = parts[SCALES].bytes_of(low // block, -(-high // block)) if how.block else None
    fill = how.fill(wanted)
    if planes or scales is not None or fill:
        kind, step = WORD_KINDS[how.dtype], how.block or MAX_BLOCK
        join_planes(kind, room, planes, fill, scales, step, threads)
    if room is not target:
        target[:] = room[(begin - low) * size : (end - low) * size]


def encode_delta(
    dtype: DType, words: memoryview, base: memoryview, threads: int = 1
) -> Part | None:
    """A slice's elements as a difference from the base's, or alone where that is smaller; None if
    they are the same. Nothing is lost.
    """
    if words == base:
        return None
    count = len(words) // dtype.itemsize
    segment = BaseSegment(blake3(base).digest(), dtype, 0, count)
    spec = TensorSpec(blake3(words).digest(), dtype, 1, count)
    view, body = open_frame(
        encode_frame(
            spec,
            FrameRange(0, count, 1, count),
            words,
            base=base,
            plan=BasePlan((segment,), is_cast=False),
            codec="delta",
            threads=threads,
        )
    )
    return Part(view, body)


def _contents(how: Coding, part: str, count: int) -> tuple[DType, int]:
    """The dtype and number of elements of a part's frame."""
    if part == WORDS:
        return how.dtype, count
    if part == SCALES:
        return DType.U8, -(-count // how.block)
    return DType.U8, -(-count * _width(how, part) // 8)


def _width(how: Coding, part: str) -> int:
    """The bits of an element in a plane."""
    return next(width for level, _, width in how.planes(how.bits) if plane_name(level) == part)


def _without_low_bits(dtype: DType, words: Buffer, bits: int) -> memoryview:
    """The elements with zeros after their `bits` highest mantissa bits."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    mask = (1 << 8 * dtype.itemsize) - (1 << (MANTISSA_BITS[dtype] - bits))
    cut = np.frombuffer(words, unsigned) & unsigned.type(mask)
    return memoryview(cut.view(np.uint8))
