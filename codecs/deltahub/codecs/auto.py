"""Which codec makes a tensor smallest, by a sample of it."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltahub.codecs._native import FmDeltaEncoder, estimate_deltas
from deltahub.codecs.dtypes import DType
from deltahub.codecs.neuzip_lossless import plan as plan_alone
from deltahub.codecs.protocol import Effort
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
    sample = _sample(dtype, source)
    sizes = {"raw": len(sample)}
    alone = plan_alone(dtype, sample)
    if alone is not None:
        sizes["neuzip_lossless"] = alone.estimated_bytes
    if base is not None:
        sizes["fm_delta"] = _delta_size(dtype, sample, _sample(dtype, base), len(source))
    sizes["zstd"] = _zstd_size(sample, min(sizes.values()))
    return min(sizes, key=lambda codec: (sizes[codec], codec))


def may_stand_alone(dtype: DType, source: memoryview, coded_bytes: int) -> bool:
    """Whether these elements without a base may take no more than `coded_bytes`.

    False only where they take more for sure: of a float all but its exponent and two digits is kept
    as it is, and hardly a delta takes that much. Else all exponents are counted, or zstd is worth a
    try.
    """
    raw_bits = _RAW_BITS.get(dtype, 0)
    if 8 * dtype.itemsize * coded_bytes <= raw_bits * len(source) and _has_last_digits(
        dtype, source
    ):
        return False
    codec = choose_codec(dtype, source, None)
    if codec == "raw":
        return False  # no frame is larger
    if codec != "neuzip_lossless":
        return True
    alone = plan_alone(dtype, source)
    # Blocks that would grow are kept raw: no estimate is twice as much as they take.
    return alone is not None and alone.estimated_bytes <= 2 * coded_bytes


def _has_last_digits(dtype: DType, source: memoryview) -> bool:
    """False where the last binary digit of elements may be zero in all of them."""
    unsigned = f"<u{dtype.itemsize}"
    return bool(np.any(np.frombuffer(source[:_DIGITS_BYTES], unsigned) & np.array(1, unsigned)))


def _delta_size(dtype: DType, sample: bytes, base: bytes, whole_bytes: int) -> int:
    """A tensor that is its own sample is worth a plan, since tables weigh much in it."""
    if len(sample) < whole_bytes:
        return estimate_deltas(WORD_KINDS[dtype], sample, base)
    count = len(sample) // dtype.itemsize
    return FmDeltaEncoder(
        WORD_KINDS[dtype], sample, base, 1, count, Effort.FAST, b"", b"", 0, False
    ).estimated_bytes


def _zstd_size(sample: bytes, best: int) -> int:
    """Where a little of the sample is far from the best, that is all there is to know."""
    few = sample[: max(len(sample) // 8, LEAST_ZSTD)]
    size = compressed_size(few) * len(sample) // len(few)
    return size if size > 1.5 * best else compressed_size(sample)


def _sample(dtype: DType, source: memoryview) -> bytes:
    size = dtype.itemsize
    runs = sample_runs(len(source) // size)
    return b"".join([source[start * size : (start + n) * size] for start, n in runs])
