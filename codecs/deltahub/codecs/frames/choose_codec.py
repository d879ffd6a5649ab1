"""Which codec makes a tensor smallest, by a sample of it."""

from collections.abc import Iterator
from typing import Final

from deltahub.codecs._native import FmDeltaEncoder, estimate_deltas
from deltahub.codecs.dtypes import DType
from deltahub.codecs.neuzip.lossless import estimate as estimate_alone
from deltahub.codecs.protocol import Buffer, Effort
from deltahub.codecs.words import WORD_KINDS
from deltahub.codecs.zstd import compressed_size

# A sample is three runs of this many elements: enough for the tables of a coder to pay off.
RUN_ELEMENTS: Final = 1 << 14
RUN_PLACES: Final = (1 / 8, 1 / 2, 7 / 8)
# Frames have at least so many bytes beside their blocks, which a codec has to save.
LEAST_BYTES: Final = 128
# What zstd is tried on first: fewer bytes hold too little of what repeats.
LEAST_ZSTD: Final = 1 << 12
# What a tensor that repeats shows it by.
REPEATING_BYTES: Final = 1 << 10
# The sign and most of the mantissa; digits that are zero in every element are left out of them.
_RAW_BITS: Final = {
    DType.F64: 53, DType.F32: 22, DType.F16: 9, DType.BF16: 6, DType.F8_E4M3: 2, DType.F8_E5M2: 1
}  # fmt: skip
_DIGITS_BYTES: Final = (1 << 6, 1 << 12)  # of hardly a tensor the first few do not tell
_LAST_DIGITS: Final = {
    dtype: int.from_bytes(
        b"\1".ljust(dtype.itemsize, b"\0") * (_DIGITS_BYTES[-1] // dtype.itemsize), "little"
    )
    for dtype in _RAW_BITS
}


def sample_runs(count: int) -> Iterator[tuple[int, int]]:
    """(first element, elements) of the runs that stand for a tensor of `count` elements."""
    if count <= len(RUN_PLACES) * RUN_ELEMENTS:
        yield 0, count
        return
    for place in RUN_PLACES:
        # Of a tensor that is hardly larger than its sample, the outer ones begin and end with it.
        start = int(count * place) - RUN_ELEMENTS // 2
        yield min(max(start, 0), count - RUN_ELEMENTS), RUN_ELEMENTS


class Sample:
    """At most 48 thousand elements of a tensor, and what each codec would take for them.

    Nothing is counted twice: one sample says which codec to try, and afterwards whether a delta is
    worth its base.
    """

    def __init__(self, dtype: DType, source: memoryview) -> None:
        """source: all elements of the tensor, or of one frame of it."""
        self._dtype, self._source = dtype, source
        item = dtype.itemsize
        runs = list(sample_runs(len(source) // item))
        self._begins = [item * start for start, _ in runs]
        self._run_bytes = item * runs[0][1]
        self._size = self._run_bytes * len(runs)
        # What has been found. Of a small tensor the locks of cached_property would be a large part.
        self._runs: Buffer | None = None
        self._neuzip: int | None = None
        self._zstd_of_few: int | None = None
        self._zstd: int | None = None

    def choose_codec(self, base: memoryview | None, rival: int | None = None) -> str:
        """The id of the codec that should take the fewest bytes for these elements.

        base: as many bytes as the elements; None: only codecs without one. rival: bytes that one
        with a base is known to take for them; zstd is not looked at closely where it is far off.
        """
        if len(self._source) < LEAST_BYTES:
            return "raw"
        best, is_float_tried = (self._size, "raw"), True  # of equals, the first by name
        if base is not None:
            delta = self._delta_size(base)
            best = min(best, (delta, "fm_delta"))
            first = self._source[self._begins[0] :]
            is_float_tried = not _is_below_raw_bits(self._dtype, first, self._size, delta)
        if is_float_tried:
            best = min(best, (self._neuzip_size(), "neuzip_lossless"))
        size, codec = best
        near = size if rival is None else min(size, rival * self._size // len(self._source))
        return "zstd" if self._is_zstd_near(near) and self._zstd_size() < size else codec

    def may_stand_alone(self, coded_bytes: int) -> bool:
        """Whether these elements without a base may take no more than `coded_bytes`.

        False only if they certainly take more. A delta hardly ever takes as much as the bits of a
        float that are stored raw, so that such a bound is enough unless the bytes repeat. Otherwise
        all exponents are counted, and zstd is tried if a small part compresses well.
        """
        is_below = _is_below_raw_bits(self._dtype, self._source, len(self._source), coded_bytes)
        if is_below and not self._repeats(coded_bytes):
            return False
        codec = self.choose_codec(None, rival=coded_bytes)
        if codec == "raw":
            return False  # no frame is larger
        if codec != "neuzip_lossless":
            return True
        alone = estimate_alone(self._dtype, self._source)
        if alone is None:
            return False
        _, least_bytes = alone
        return least_bytes <= coded_bytes

    def _delta_size(self, base: memoryview) -> int:
        """A tensor that is its own sample is worth a plan, since tables weigh much in it."""
        kind = WORD_KINDS[self._dtype]
        if len(self._begins) > 1:
            return estimate_deltas(kind, self._source, base, self._begins, RUN_ELEMENTS)
        count = len(self._source) // self._dtype.itemsize
        return FmDeltaEncoder(
            kind, self._source, base, 1, count, Effort.FAST, b"", b"", 0, False, True
        ).estimated_bytes

    def _neuzip_size(self) -> int:
        """More than of a raw frame where there is no table to be had."""
        if self._neuzip is None:
            alone = estimate_alone(self._dtype, self._joined())
            self._neuzip = self._size + 1 if alone is None else alone[0]
        return self._neuzip

    def _repeats(self, coded_bytes: int) -> bool:
        """Whether zstd may reach `coded_bytes`, judged by one short run."""
        begin = self._begins[len(self._begins) // 2]
        few = self._source[begin : begin + REPEATING_BYTES]
        return compressed_size(few) * len(self._source) <= coded_bytes * len(few)

    def _is_zstd_near(self, size: int) -> bool:
        """Whether zstd comes near `size`, judged by a small part of the sample."""
        if self._zstd_of_few is None:
            begin = self._begins[0]
            n = min(max(self._size // 8, LEAST_ZSTD), self._run_bytes)
            self._zstd_of_few = compressed_size(self._source[begin : begin + n]) * self._size // n
        return self._zstd_of_few <= 1.5 * size

    def _zstd_size(self) -> int:
        if self._zstd is None:
            self._zstd = compressed_size(self._joined())
        return self._zstd

    def _joined(self) -> Buffer:
        """The sample, copied only where it is several runs."""
        if self._runs is None:
            runs = [self._source[begin : begin + self._run_bytes] for begin in self._begins]
            self._runs = runs[0] if len(runs) == 1 else b"".join(runs)
        return self._runs


def _is_below_raw_bits(dtype: DType, source: memoryview, size: int, coded_bytes: int) -> bool:
    """Whether neuzip_lossless takes no less for sure, of `size` bytes that begin as `source`.

    Of a float it keeps all but the exponent and two digits as it is, unless the last digits may be
    zero in all elements.
    """
    if 8 * dtype.itemsize * coded_bytes > _RAW_BITS.get(dtype, 0) * size:
        return False
    digits = _LAST_DIGITS[dtype]
    return any(int.from_bytes(source[:n], "little") & digits for n in _DIGITS_BYTES)
