"""The weights of exports, and of fine-tunes kept as differences, that `make bench-gpu` decodes."""

from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.cases import COLUMNS, SPREAD, STEP, as_bytes
from deltahub.codecs import DType
from deltahub.codecs.exports.coding import (
    SLICE_ELEMENTS,
    Coding,
    Part,
    coding,
    encode_delta,
    encode_slice,
    lossless,
    open_part,
)
from deltahub.codecs.exports.file import CompressedWeight

THREADS = 2


@dataclass(frozen=True)
class ExportCase:
    """One weight with what a reader of `bits` bits gets. deltas: of a fine-tune, which is `source`
    then.
    """

    name: str
    weight: CompressedWeight
    bits: int | None
    source: bytes
    deltas: tuple[Part | None, ...] | None = None
    aim: int | None = None

    @property
    def stored_share(self) -> float:
        changed = sum(part.size_bytes for part in self.deltas or () if part is not None)
        return (self.weight.size_bytes(self.bits) + changed) / len(self.source)


def make_export_cases(size_bytes: int) -> list[ExportCase]:
    """A weight of `size_bytes` for each way of decoding it that models use."""
    bf16, f16, f32 = DType.BF16, DType.F16, DType.F32
    return [
        _case("export BF16, lossless", lossless(bf16), size_bytes, aim=400),
        _case("export BF16, 3 bits", coding(bf16, 3, 0), size_bytes, aim=400),
        _case("export BF16, 3 bits, blocks", coding(bf16, 3, 512), size_bytes),
        _case("export BF16, 3 of 5 bits", coding(bf16, 5, 0, [3]), size_bytes, bits=3),
        _case("export BF16, 5 bits of planes", coding(bf16, 5, 512, [1, 3]), size_bytes),
        _case("export F16, 5 bits, blocks", coding(f16, 5, 512), size_bytes),
        _case("export F32, 7 bits, blocks", coding(f32, 7, 512), size_bytes),
        _family_case("family BF16, a fine-tune", bf16, size_bytes),
    ]


def _case(
    name: str, how: Coding, size_bytes: int, *, bits: int | None = None, aim: int | None = None
) -> ExportCase:
    weight = _compressed(name, how, _words(how.dtype, size_bytes, 0.0))
    source = bytearray(weight.plain_bytes)
    weight.decode_into(memoryview(source), bits, THREADS)
    return ExportCase(name, weight, bits, bytes(source), aim=aim)


def _family_case(name: str, dtype: DType, size_bytes: int) -> ExportCase:
    base, tuned = _words(dtype, size_bytes, 0.0), _words(dtype, size_bytes, STEP)
    step = SLICE_ELEMENTS * dtype.itemsize
    deltas = tuple(
        encode_delta(
            dtype, memoryview(tuned)[at : at + step], memoryview(base)[at : at + step], THREADS
        )
        for at in range(0, len(base), step)
    )
    return ExportCase(name, _compressed(name, lossless(dtype), base), None, tuned, deltas, aim=None)


def _words(dtype: DType, size_bytes: int, moved: float) -> bytes:
    """Normally distributed weights, moved by normal steps of this standard deviation."""
    rows = max(size_bytes // dtype.itemsize // COLUMNS, 1)
    random = np.random.default_rng(0)
    weights = random.standard_normal((rows, COLUMNS), np.float32) * np.float32(SPREAD)
    if moved:
        weights += random.standard_normal(weights.shape, np.float32) * np.float32(moved)
    return as_bytes(weights, dtype)


def _compressed(name: str, how: Coding, words: bytes) -> CompressedWeight:
    step, slices = SLICE_ELEMENTS * how.dtype.itemsize, []
    for at in range(0, len(words), step):
        piece = memoryview(words)[at : at + step]
        frames, _ = encode_slice(how, piece, THREADS)
        count = len(piece) // how.dtype.itemsize
        slices.append({part: open_part(how, part, data, count) for part, data in frames.items()})
    return CompressedWeight(name, (len(words) // how.dtype.itemsize,), how, tuple(slices))
