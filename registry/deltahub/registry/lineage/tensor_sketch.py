"""A sketch of a tensor that fine-tuning hardly changes: 64 of its elements as BF16.

The elements lie in 16 places of 4 neighbours, chosen by a fixed seed. F32 and F16 are cast to BF16,
so that a model and its cast have the same sketch. The places depend on the size of a row and on the
largest power of two up to the number of rows, so that a few appended rows move no place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_plan import ReadTensor
from deltahub.codecs.frames.nearness import U16, nearness, to_bf16

N_BANDS = 16
BAND_ELEMENTS = 4
MIN_ELEMENTS = 4096
TENSORS_PER_MODEL = 8
# With fewer distinct values a sketch is useless: new norms are all ones in every model.
MIN_DISTINCT = 16

FLOATS = frozenset(dtype.name for dtype in CASTABLE)
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class TensorSketch:
    """One tensor's sketch. positions: shape (64,), BF16 bit patterns in order of place."""

    shape_class: str
    positions: U16

    @property
    def bands(self) -> tuple[int, ...]:
        """16 integers of 36 bits: the sign and exponent of the 4 elements of each place."""
        words = (self.positions >> 7).astype(np.int64).reshape(N_BANDS, BAND_ELEMENTS)
        shifts = np.arange(BAND_ELEMENTS, dtype=np.int64) * 9
        return tuple(int(value) for value in (words << shifts).sum(axis=1))

    def to_bytes(self) -> bytes:
        return self.positions.astype("<u2").tobytes()

    @classmethod
    def from_bytes(cls, shape_class: str, data: bytes) -> "TensorSketch":
        return cls(shape_class, np.frombuffer(data, dtype="<u2").astype(np.uint16))


@dataclass(frozen=True)
class Sketchable:
    """A tensor that can be sketched. read(first_byte, out) gives its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: ReadTensor

    @property
    def count(self) -> int:
        return prod(self.shape)


def choose(tensors: Iterable[Sketchable]) -> list[Sketchable]:
    """The tensors that represent a model: up to 8 of the largest float ones, two of one shape."""
    fit = [t for t in tensors if t.dtype in FLOATS and t.shape and t.count >= MIN_ELEMENTS]
    chosen: list[Sketchable] = []
    of_shape: dict[tuple[int, ...], int] = {}
    for tensor in sorted(fit, key=lambda t: (-t.count, t.name)):
        of_shape[tensor.shape] = of_shape.get(tensor.shape, 0) + 1
        if of_shape[tensor.shape] <= 2:
            chosen.append(tensor)
        if len(chosen) == TENSORS_PER_MODEL:
            break
    return chosen


def sketch(tensor: Sketchable) -> TensorSketch | None:
    """The tensor's sketch; None if it has fewer than MIN_DISTINCT distinct values."""
    dtype = DType.from_name(tensor.dtype)
    rows = 1 << (tensor.shape[0].bit_length() - 1)
    columns = tensor.count // tensor.shape[0]
    places = rows * columns // BAND_ELEMENTS
    raw = bytearray(N_BANDS * BAND_ELEMENTS * dtype.itemsize)
    step = BAND_ELEMENTS * dtype.itemsize
    for band in range(N_BANDS):
        place = _random64(band) * places >> 64
        tensor.read(place * step, memoryview(raw)[band * step : (band + 1) * step])
    positions = to_bf16(dtype, raw)
    if len(np.unique(positions)) < MIN_DISTINCT:
        return None
    return TensorSketch(f"{rows}x{columns}", positions)


def similarity(one: TensorSketch, other: TensorSketch) -> float:
    """Share of the 64 elements that are near each other: about 0.07 for unrelated weights."""
    return float(nearness(one.positions, other.positions))


def _random64(seed: int) -> int:
    """A fixed sequence of 64-bit numbers (splitmix64, Vigna 2015)."""
    z = ((seed + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
