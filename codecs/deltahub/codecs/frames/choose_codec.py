"""Chooses the codec that makes a tensor smallest, estimated on a sample of its elements."""

from collections.abc import Iterator
from typing import Final

from deltahub.codecs._native import FmDeltaEncoder, estimate_deltas
from deltahub.codecs.dtypes import DType
from deltahub.codecs.neuzip.lossless import estimate as estimate_standalone
from deltahub.codecs.protocol import Buffer, Effort
from deltahub.codecs.words import WORD_KINDS
from deltahub.codecs.zstd import compressed_size

# A sample is three ranges of this many elements: enough for a coder's tables to pay off.
RANGE_ELEMENTS: Final = 1 << 14
RANGE_PLACES: Final = (1 / 8, 1 / 2, 7 / 8)
# Fewer bytes are stored raw, because a frame takes more than that besides its blocks.
MIN_CODED_BYTES: Final = 128
# zstd is tried on at least this many bytes first: fewer show too little of a repetition.
MIN_ZSTD_BYTES: Final = 1 << 12
# zstd compresses this many bytes to find out whether a tensor repeats.
REPEAT_PROBE_BYTES: Final = 1 << 10
# Bits of a float that neuzip_lossless stores raw: the sign, and the mantissa but for its first two
# bits (all of it in F64). Trailing mantissa bits that are zero in all elements are not stored.
_RAW_BITS: Final = {
    DType.F64: 53, DType.F32: 22, DType.F16: 9, DType.BF16: 6, DType.F8_E4M3: 2, DType.F8_E5M2: 1
}  # fmt: skip
# Bytes that are searched for a set last bit: for nearly all tensors the first 64 are enough.
_LAST_BIT_PROBES: Final = (1 << 6, 1 << 12)
_LAST_BITS: Final = {
    dtype: int.from_bytes(
        b"\1".ljust(dtype.itemsize, b"\0") * (_LAST_BIT_PROBES[-1] // dtype.itemsize), "little"
    )
    for dtype in _RAW_BITS
}


def sampled_ranges(count: int) -> Iterator[tuple[int, int]]:
    """(first element, elements) of the ranges that are sampled of a tensor of `count` elements."""
    if count <= len(RANGE_PLACES) * RANGE_ELEMENTS:
        yield 0, count
        return
    for place in RANGE_PLACES:
        # In a tensor hardly larger than its sample, the outer ranges would exceed the tensor.
        start = int(count * place) - RANGE_ELEMENTS // 2
        yield min(max(start, 0), count - RANGE_ELEMENTS), RANGE_ELEMENTS


class Sample:
    """At most 49,152 elements of a tensor, and the estimated bytes of each codec for them.

    Estimates are kept: one sample chooses the codec, and afterwards tells whether a frame without
    a base may be smaller than the delta.
    """

    def __init__(self, dtype: DType, source: memoryview) -> None:
        """source: all elements of the tensor, or of one frame of it."""
        self._dtype, self._source = dtype, source
        item = dtype.itemsize
        ranges = list(sampled_ranges(len(source) // item))
        self._begins = [item * start for start, _ in ranges]
        self._range_bytes = item * ranges[0][1]
        self._size = self._range_bytes * len(ranges)
        # Estimates so far. For a small tensor the locks of cached_property would take long.
        self._sample: Buffer | None = None
        self._neuzip: int | None = None
        self._zstd_probe: int | None = None
        self._zstd: int | None = None

    def choose_codec(self, base: memoryview | None, delta_bytes: int | None = None) -> str:
        """The id of the codec with the smallest estimate for these elements.

        base: as many bytes as the elements; None: only codecs without a base. delta_bytes: size of
        a known delta of the elements; the whole sample is compressed with zstd only if a part of
        the sample comes near that size.
        """
        if len(self._source) < MIN_CODED_BYTES:
            return "raw"
        best, is_float_tried = (self._size, "raw"), True  # equal sizes: first by name
        if base is not None:
            delta = self._delta_size(base)
            best = min(best, (delta, "fm_delta"))
            first = self._source[self._begins[0] :]
            is_float_tried = not _is_below_raw_bits(self._dtype, first, self._size, delta)
        if is_float_tried:
            best = min(best, (self._neuzip_size(), "neuzip_lossless"))
        size, codec = best
        limit = size
        if delta_bytes is not None:
            limit = min(size, delta_bytes * self._size // len(self._source))
        return "zstd" if self._is_zstd_near(limit) and self._zstd_size() < size else codec

    def may_be_smaller_standalone(self, coded_bytes: int) -> bool:
        """Whether these elements without a base may take no more than `coded_bytes`.

        False if `coded_bytes` is below the bits that neuzip_lossless stores raw, as for nearly
        every delta, unless a short probe of the bytes compresses well. Otherwise all exponents are
        counted, and zstd is tried if a small part of the sample compresses well.
        """
        is_below = _is_below_raw_bits(self._dtype, self._source, len(self._source), coded_bytes)
        if is_below and not self._may_repeat(coded_bytes):
            return False
        codec = self.choose_codec(None, delta_bytes=coded_bytes)
        if codec == "raw":
            return False  # a raw frame is the largest
        if codec != "neuzip_lossless":
            return True
        standalone = estimate_standalone(self._dtype, self._source)
        if standalone is None:
            return False
        _, least_bytes = standalone
        return least_bytes <= coded_bytes

    def _delta_size(self, base: memoryview) -> int:
        """A tensor that is its own sample is planned in full: tables are much of its size."""
        kind = WORD_KINDS[self._dtype]
        if len(self._begins) > 1:
            return estimate_deltas(kind, self._source, base, self._begins, RANGE_ELEMENTS)
        count = len(self._source) // self._dtype.itemsize
        return FmDeltaEncoder(
            kind, self._source, base, 1, count, Effort.FAST, b"", b"", 0, False, True
        ).estimated_bytes

    def _neuzip_size(self) -> int:
        """More than the raw size if no table can code the exponents."""
        if self._neuzip is None:
            standalone = estimate_standalone(self._dtype, self._joined_sample())
            self._neuzip = self._size + 1 if standalone is None else standalone[0]
        return self._neuzip

    def _may_repeat(self, coded_bytes: int) -> bool:
        """Whether zstd may reach `coded_bytes`, judged by one short probe."""
        begin = self._begins[len(self._begins) // 2]
        probe = self._source[begin : begin + REPEAT_PROBE_BYTES]
        return compressed_size(probe) * len(self._source) <= coded_bytes * len(probe)

    def _is_zstd_near(self, size: int) -> bool:
        """Whether zstd takes at most 1.5 * `size`, judged by a small part of the sample."""
        if self._zstd_probe is None:
            begin = self._begins[0]
            n = min(max(self._size // 8, MIN_ZSTD_BYTES), self._range_bytes)
            self._zstd_probe = compressed_size(self._source[begin : begin + n]) * self._size // n
        return self._zstd_probe <= 1.5 * size

    def _zstd_size(self) -> int:
        if self._zstd is None:
            self._zstd = compressed_size(self._joined_sample())
        return self._zstd

    def _joined_sample(self) -> Buffer:
        """The sample, copied only if it has several ranges."""
        if self._sample is None:
            ranges = [self._source[begin : begin + self._range_bytes] for begin in self._begins]
            self._sample = ranges[0] if len(ranges) == 1 else b"".join(ranges)
        return self._sample


def _is_below_raw_bits(dtype: DType, source: memoryview, size: int, coded_bytes: int) -> bool:
    """Whether `coded_bytes` is below a lower bound of neuzip_lossless for `size` bytes.

    The bound is the bits that the codec stores raw. It holds only if the last mantissa bit is set
    in some element, because trailing bits that are zero everywhere are not stored. Only the first
    4 KiB of `source`, where the bytes begin, are searched for such an element.
    """
    if 8 * dtype.itemsize * coded_bytes > _RAW_BITS.get(dtype, 0) * size:
        return False
    last_bits = _LAST_BITS[dtype]
    return any(int.from_bytes(source[:n], "little") & last_bits for n in _LAST_BIT_PROBES)
