"""Which codec makes a tensor smallest, by a sample of it."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from deltahub.codecs._native import FmDeltaEncoder, estimate_deltas
from deltahub.codecs.dtypes import DType
from deltahub.codecs.neuzip_lossless import estimate as estimate_alone
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
# The sign and most of the mantissa; digits that are zero in every element are left out of them.
_RAW_BITS: Final = {
    DType.F64: 53, DType.F32: 22, DType.F16: 9, DType.BF16: 6, DType.F8_E4M3: 2, DType.F8_E5M2: 1
}  # fmt: skip
_DIGITS_BYTES: Final = 1 << 12
_LAST_DIGITS: Final = {
    dtype: int.from_bytes(b"\1".ljust(dtype.itemsize, b"\0") * _DIGITS_BYTES, "little")
    & ((1 << 8 * _DIGITS_BYTES) - 1)
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
        runs = sample_runs(len(source) // item)
        self._spans = [(item * start, item * (start + n)) for start, n in runs]
        self._size = sum(end - begin for begin, end in self._spans)
        self._first = source[slice(*self._spans[0])]

    def choose_codec(self, base: memoryview | None) -> str:
        """The id of the codec that should take the fewest bytes for these elements.

        base: as many bytes as the elements; None: only codecs without one.
        """
        if len(self._source) < LEAST_BYTES:
            return "raw"
        sizes = {"raw": self._size}
        if base is not None:
            sizes["fm_delta"] = _delta_size(self._dtype, self._source, base, self._spans)
        if base is None or not _is_below_raw_bits(
            self._dtype, self._first, self._size, sizes["fm_delta"]
        ):
            alone = self._neuzip
            if alone is not None:
                sizes["neuzip_lossless"], _ = alone
        sizes["zstd"] = self._zstd_size(min(sizes.values()))
        return min(sizes, key=lambda codec: (sizes[codec], codec))

    def may_stand_alone(self, coded_bytes: int) -> bool:
        """Whether these elements without a base may take no more than `coded_bytes`.

        False only where they take more for sure: hardly a delta takes as much as what of a float is
        kept as it is. Else all exponents are counted, or zstd is worth a try.
        """
        if _is_below_raw_bits(self._dtype, self._source, len(self._source), coded_bytes):
            return False
        codec = self.choose_codec(None)
        if codec == "raw":
            return False  # no frame is larger
        if codec != "neuzip_lossless":
            return True
        alone = estimate_alone(self._dtype, self._source)
        if alone is None:
            return False
        _, least_bytes = alone
        return least_bytes <= coded_bytes

    @cached_property
    def _joined(self) -> Buffer:
        """The sample, copied only where it is several runs."""
        if len(self._spans) == 1:
            return self._first
        return b"".join([self._source[begin:end] for begin, end in self._spans])

    @cached_property
    def _neuzip(self) -> tuple[int, int] | None:
        return estimate_alone(self._dtype, self._joined)

    @cached_property
    def _zstd_of_few(self) -> int:
        few = self._first[: max(self._size // 8, LEAST_ZSTD)]
        return compressed_size(few) * self._size // len(few)

    @cached_property
    def _zstd(self) -> int:
        return compressed_size(self._joined)

    def _zstd_size(self, best: int) -> int:
        """Where a little of the sample is far from the best, that is all there is to know."""
        return self._zstd_of_few if self._zstd_of_few > 1.5 * best else self._zstd


def _is_below_raw_bits(dtype: DType, source: memoryview, size: int, coded_bytes: int) -> bool:
    """Whether neuzip_lossless takes no less for sure, of `size` bytes that begin as `source`.

    Of a float it keeps all but the exponent and two digits as it is, unless the last digits may be
    zero in all elements.
    """
    if 8 * dtype.itemsize * coded_bytes > _RAW_BITS.get(dtype, 0) * size:
        return False
    return int.from_bytes(source[:_DIGITS_BYTES], "little") & _LAST_DIGITS[dtype] != 0


def _delta_size(
    dtype: DType, source: memoryview, base: memoryview, spans: list[tuple[int, int]]
) -> int:
    """A tensor that is its own sample is worth a plan, since tables weigh much in it."""
    kind = WORD_KINDS[dtype]
    if len(spans) > 1:
        return estimate_deltas(kind, source, base, [begin for begin, _ in spans], RUN_ELEMENTS)
    count = len(source) // dtype.itemsize
    return FmDeltaEncoder(
        kind, source, base, 1, count, Effort.FAST, b"", b"", 0, False
    ).estimated_bytes
