"""The frames that `make bench-gpu` decodes: weights, and fine-tunes of them, of one frame each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    DType,
    FrameView,
    TensorSpec,
    encode_frame,
    open_frame,
    split_frames,
    tensor_id,
)
from deltahub.codecs.protocol import Effort

COLUMNS = 4096
SPREAD = 0.02  # of weights
STEP = 2e-4  # of a fine-tune
RANK = 16  # of a merged adapter


@dataclass(frozen=True)
class Case:
    """One frame with what it decodes to."""

    name: str
    view: FrameView
    body: memoryview
    source: bytes
    base: bytes | None
    aim: int | None = None  # GB of output a second, together with others of its kind

    @property
    def stored_share(self) -> float:
        return self.view.header.frame_length / len(self.source)


def make_cases(size_bytes: int) -> list[Case]:
    """One frame of at most `size_bytes` for each kernel and kind of model that people use."""
    raw = make_case("raw BF16, a copy", "raw", DType.BF16, size_bytes)
    return [
        raw,
        make_case("neuzip_lossless BF16", "neuzip_lossless", DType.BF16, size_bytes, aim=400),
        make_case("neuzip_lossless F16", "neuzip_lossless", DType.F16, size_bytes),
        make_case("neuzip_lossless F32", "neuzip_lossless", DType.F32, size_bytes),
        make_case("neuzip_lossless F8_E4M3", "neuzip_lossless", DType.F8_E4M3, size_bytes),
        make_case("fm_delta BF16", "fm_delta", DType.BF16, size_bytes, aim=300),
        make_case("fm_delta F16", "fm_delta", DType.F16, size_bytes),
        make_case("fm_delta F32", "fm_delta", DType.F32, size_bytes),
        make_case("fm_delta BF16, merged adapter", "fm_delta", DType.BF16, size_bytes, rank=RANK),
    ]


def make_case(
    name: str, codec: str, dtype: DType, size_bytes: int, *, rank: int = 0, aim: int | None = None
) -> Case:
    """A frame of weights, or of their difference from a base. rank: of the difference, 0 for any.

    A product needs the search of effort default, so its frame has at most 8 MiB.
    """
    if rank > 0:
        size_bytes = min(size_bytes, 8 << 20)
    rows = max(size_bytes // dtype.itemsize // COLUMNS, 1)
    random = np.random.default_rng(0)
    weights = random.standard_normal((rows, COLUMNS), np.float32) * np.float32(SPREAD)
    base = as_bytes(weights, dtype)
    effort = Effort.DEFAULT if rank > 0 else Effort.FAST
    spec = TensorSpec(tensor_id(base), dtype, rows, COLUMNS)
    (part,) = split_frames(spec)
    if codec != "fm_delta":
        frame = encode_frame(spec, part, base, codec=codec, threads=2, effort=effort)
        return Case(name, *open_frame(frame), base, None, aim)
    if rank > 0:
        left = random.standard_normal((rows, rank), np.float32)
        right = random.standard_normal((rank, COLUMNS), np.float32)
        weights += left @ right * np.float32(STEP)
    else:
        weights += random.standard_normal(weights.shape, np.float32) * np.float32(STEP)
    source = as_bytes(weights, dtype)
    plan = BasePlan((BaseSegment(tensor_id(base), dtype, 0, part.count),), is_cast=False)
    spec = TensorSpec(tensor_id(source), dtype, rows, COLUMNS)
    frame = encode_frame(spec, part, source, base, plan, codec, 2, effort)
    return Case(name, *open_frame(frame), source, base, aim)


def as_bytes(weights: npt.NDArray[np.float32], dtype: DType) -> bytes:
    """The weights in a dtype, rounded."""
    if dtype is DType.F32:
        return weights.tobytes()
    if dtype is DType.F16:
        return weights.astype("<f2").tobytes()
    if dtype is DType.BF16:
        bits = weights.view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").tobytes()
    # F8_E4M3: the bits of F16 with a shorter exponent; 2^8 brings weights into its range.
    bits = (weights * np.float32(2.0**-8 * 16)).astype("<f2").view("<u2")
    return ((bits >> 8 & 0x80) | (bits >> 7 & 0x7F)).astype(np.uint8).tobytes()
