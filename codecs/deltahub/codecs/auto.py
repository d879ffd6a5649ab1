"""Which codec makes a tensor smallest, by a sample of it."""

from collections.abc import Iterator
from typing import Final

from deltahub.codecs._native import FmDeltaEncoder, estimate_deltas
from deltahub.codecs.dtypes import DType
from deltahub.codecs.neuzip_lossless import plan as plan_alone
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


def choose_codec(dtype: DType, source: memoryview, base: memoryview | None) -> str:
    """The id of the codec that should take the fewest bytes for these elements.

    source, base: as many bytes, whole elements; no base: only codecs without one. Counts at most
    48 thousand elements.
    """
    if len(source) < LEAST_BYTES:
        return "raw"
    item = dtype.itemsize
    spans = [(item * start, item * (start + n)) for start, n in sample_runs(len(source) // item)]
    size = sum(end - begin for begin, end in spans)
    sizes = {"raw": size}
    if base is not None:
        sizes["fm_delta"] = _delta_size(dtype, source, base, spans)
    first = source[slice(*spans[0])]
    if base is None or not _is_below_raw_bits(dtype, first, size, sizes["fm_delta"]):
        alone = plan_alone(dtype, _joined(source, spans))
        if alone is not None:
            sizes["neuzip_lossless"] = alone.estimated_bytes
    sizes["zstd"] = _zstd_size(source, spans, size, min(sizes.values()))
    return min(sizes, key=lambda codec: (sizes[codec], codec))


def may_stand_alone(dtype: DType, source: memoryview, coded_bytes: int) -> bool:
    """Whether these elements without a base may take no more than `coded_bytes`.

    False only where they take more for sure: hardly a delta takes as much as what of a float is
    kept as it is. Else all exponents are counted, or zstd is worth a try.
    """
    if _is_below_raw_bits(dtype, source, len(source), coded_bytes):
        return False
    codec = choose_codec(dtype, source, None)
    if codec == "raw":
        return False  # no frame is larger
    if codec != "neuzip_lossless":
        return True
    alone = plan_alone(dtype, source)
    # Blocks that would grow are kept raw: no estimate is twice as much as they take.
    return alone is not None and alone.estimated_bytes <= 2 * coded_bytes


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


def _zstd_size(source: memoryview, spans: list[tuple[int, int]], size: int, best: int) -> int:
    """Where a little of the sample is far from the best, that is all there is to know."""
    few = source[slice(*spans[0])][: max(size // 8, LEAST_ZSTD)]
    estimate = compressed_size(few) * size // len(few)
    return estimate if estimate > 1.5 * best else compressed_size(_joined(source, spans))


def _joined(source: memoryview, spans: list[tuple[int, int]]) -> Buffer:
    """The bytes of these spans, copied only where there are several."""
    if len(spans) == 1:
        return source[slice(*spans[0])]
    return b"".join([source[begin:end] for begin, end in spans])
