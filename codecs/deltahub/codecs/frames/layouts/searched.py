"""The forms in which a tensor is searched for in a base: as stored, transposed, or before FP8."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import Range, TensorInfo, coded_as, join
from deltahub.codecs.frames.base_plan import BasePlan, ReadBase, ReadTensor, assemble
from deltahub.codecs.frames.layouts.scales import U8, find_scales, fp8_values
from deltahub.codecs.frames.nearness import U16, nearness, to_bf16
from deltahub.codecs.frames.views.scaled import FP8, WIDE
from deltahub.codecs.frames.views.transposed import MAX_MATRIX_BYTES, Transposed, read_transposed
from deltahub.codecs.protocol import Buffer

# Elements in the middle of a part that are compared.
PROBE_ELEMENTS: Final = 64
# Types of tensors that are searched for, and in a base.
SEARCHED: Final = CASTABLE | FP8
# Octaves that rounding to FP8 and fine-tuning move an element by, at most.
_NEAR_OCTAVES: Final = 0.25


def is_searched(tensor: TensorInfo) -> bool:
    """Whether there are enough elements to compare, of a type that is searched."""
    is_large = bool(tensor.shape) and tensor.count >= PROBE_ELEMENTS
    return is_large and coded_as(tensor.dtype) in SEARCHED


def probe_of(dtype: DType, raw: Buffer) -> U16:
    """Elements as BF16 bit patterns; FP8 numbers are such numbers, too."""
    if dtype not in FP8:
        return to_bf16(dtype, raw)
    return (fp8_values(dtype)[np.frombuffer(raw, np.uint8)].view(np.uint32) >> 16).astype(np.uint16)


class Searched:
    """A tensor that a base is searched for, and how many places were compared in vain.

    info: the shape that the base's elements would have. is_as_stored: whether a base of the same
    shape is none of another layout.
    """

    is_as_stored = True

    def __init__(self, info: TensorInfo, read: ReadTensor) -> None:
        self.info = info
        self.misses = 0
        self._read = read
        self._dtype = DType.from_name(info.dtype)
        self._probes: dict[int, bytearray] = {}

    def may_have(self, base: TensorInfo) -> bool:
        """Whether elements of the base's type may be a base of the tensor's."""
        dtype = coded_as(base.dtype)
        return dtype == self._dtype or {dtype, self._dtype} <= CASTABLE

    def nearness(self, first: int, probe: U16) -> float:
        """How near the tensor's elements from `first` on are to those of a base, 0 to 1.

        probe: BF16 bit patterns of the base, shape (PROBE_ELEMENTS,).
        """
        return float(nearness(probe_of(self._dtype, self._elements(first)), probe))

    def plan(self, ranges: Sequence[Range], read_base: ReadBase) -> BasePlan | None:
        """The plan of these ranges; None if it cannot be made."""
        return join(self.info, ranges)

    def _elements(self, first: int) -> bytearray:
        if first not in self._probes:
            raw = bytearray(PROBE_ELEMENTS * self._dtype.itemsize)
            self._fill(first, memoryview(raw))
            self._probes[first] = raw
        return self._probes[first]

    def _fill(self, first: int, out: memoryview) -> None:
        self._read(first * self._dtype.itemsize, out)


class _Transpose(Searched):
    """The transposes of the tensor's matrices."""

    is_as_stored = False

    def __init__(self, info: TensorInfo, read: ReadTensor) -> None:
        *others, rows, columns = info.shape
        super().__init__(replace(info, shape=(*others, columns, rows)), read)
        self._own = Transposed(rows, columns)
        self._view = Transposed(columns, rows)

    def plan(self, ranges: Sequence[Range], read_base: ReadBase) -> BasePlan | None:
        plan = join(self.info, ranges)
        return None if plan is None else replace(plan, view=self._view)

    def _fill(self, first: int, out: memoryview) -> None:
        itemsize = self._dtype.itemsize

        def read(first_element: int, into: memoryview) -> None:
            self._read(first_element * itemsize, into)

        read_transposed(self._own, itemsize, first, read, out)


class _BeforeFp8(Searched):
    """What an FP8 tensor was scaled and rounded from."""

    is_as_stored = False

    def may_have(self, base: TensorInfo) -> bool:
        return coded_as(base.dtype) in WIDE

    def nearness(self, first: int, probe: U16) -> float:
        """The share of elements with the base's sign, and a ratio near to that of the others."""
        values = fp8_values(self._dtype)[np.frombuffer(self._elements(first), np.uint8)]
        base = _as_floats(probe)
        tells = (values != 0) & (base != 0) & np.isfinite(values) & np.isfinite(base)
        if tells.sum() < PROBE_ELEMENTS // 2:
            return 0.0
        octaves = np.log2(np.abs(values[tells])) - np.log2(np.abs(base[tells]))
        near = np.abs(octaves - np.median(octaves)) < _NEAR_OCTAVES
        return float((near & (np.signbit(values[tells]) == np.signbit(base[tells]))).mean())

    def plan(self, ranges: Sequence[Range], read_base: ReadBase) -> BasePlan | None:
        """None, too, where the ranges do not reach the tensor's end."""
        if sum(count for _, _, count in ranges) != self.info.count:
            return None
        source = join(replace(self.info, dtype="F32"), ranges)
        if source is None:
            return None
        columns = self.info.shape[-1]

        def read_rows(first: int, rows: int) -> tuple[U8, npt.NDArray[np.float32]]:
            codes = np.empty((rows, columns), np.uint8)
            near = np.empty((rows, columns), "<f4")
            self._read(first * columns, codes.data.cast("B"))
            start, count = first * columns, rows * columns
            assemble(source, DType.F32, start, count, read_base, near.data.cast("B"))
            return codes, near

        view = find_scales(self.info, read_rows)
        return None if view is None else BasePlan(source.segments, is_cast=True, view=view)


def searched_as(info: TensorInfo, read: ReadTensor) -> Iterator[Searched]:
    """The forms in which this tensor may be found. read: the tensor's bytes."""
    dtype = coded_as(info.dtype)
    if dtype not in SEARCHED:
        return
    if dtype in FP8:
        yield _BeforeFp8(info, read)
    yield Searched(info, read)
    if len(info.shape) > 1 and min(info.shape[-2:]) > 1:
        if info.shape[-2] * info.shape[-1] * dtype.itemsize <= MAX_MATRIX_BYTES:
            yield _Transpose(info, read)


def _as_floats(patterns: U16) -> npt.NDArray[np.float32]:
    return (patterns.astype(np.uint32) << 16).view(np.float32)
