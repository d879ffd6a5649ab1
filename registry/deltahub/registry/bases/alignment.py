"""How a stored tensor can serve as the base of another: aligned, cast, with rows added or cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType, coding_dtype
from deltahub.codecs.frames import BasePlan, BaseSegment
from deltahub.codecs.ids import ZERO_ID


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A stored tensor as a candidate's recipe names it."""

    id: int
    hash: bytes
    depth: int
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that looks for a base, as its safetensors header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class BaseOption:
    """One way to build a base: stored tensors (rows of `tensors`) and the plan over them."""

    tensors: tuple[StoredTensor, ...]
    plan: BasePlan

    @property
    def depth(self) -> int:
        """The depth that a delta against this base has."""
        return 1 + max(tensor.depth for tensor in self.tensors)


def coded_as(name: str) -> DType | None:
    """The dtype that elements of this safetensors dtype are coded in, None if as bare bytes."""
    dtype = coding_dtype(name)
    return dtype if dtype.name == name else None


def align(info: TensorInfo, base: StoredTensor) -> BaseOption | None:
    """The base under this tensor, element by element; None where shapes or types do not allow it.

    The shapes are equal but for the first dimension: rows that the base lacks are predicted as
    zeros, rows that it has too many are left out. Float types are cast.
    """
    dtype, base_dtype = coded_as(info.dtype), coded_as(base.dtype)
    if dtype is None or base_dtype is None or not _is_castable(base_dtype, dtype):
        return None
    if len(info.shape) != len(base.shape) or info.shape[1:] != base.shape[1:] or not info.shape:
        same = info.shape == base.shape
        return BaseOption((base,), identity(base.hash, base_dtype, 1, dtype)) if same else None
    columns = prod(info.shape[1:])
    rows = min(info.shape[0], base.shape[0])
    if rows * columns == 0:
        return None
    segments = [BaseSegment(base.hash, base_dtype, 0, rows * columns)]
    missing = (info.shape[0] - rows) * columns
    if missing:
        segments.append(BaseSegment(ZERO_ID, dtype, 0, missing))
    return BaseOption((base,), BasePlan(tuple(segments), is_cast=base_dtype != dtype))


def fuse(info: TensorInfo, parts: Sequence[StoredTensor]) -> BaseOption | None:
    """Several stored tensors, stacked by rows, as the base of one (a fused qkv projection)."""
    dtype = coded_as(info.dtype)
    dtypes = [coded_as(part.dtype) for part in parts]
    if dtype is None or not info.shape or any(len(p.shape) != len(info.shape) for p in parts):
        return None
    if any(part.shape[1:] != info.shape[1:] for part in parts):
        return None
    if sum(part.shape[0] for part in parts) != info.shape[0]:
        return None
    segments = []
    for part, part_dtype in zip(parts, dtypes, strict=True):
        if part_dtype is None or not _is_castable(part_dtype, dtype) or not prod(part.shape):
            return None
        segments.append(BaseSegment(part.hash, part_dtype, 0, prod(part.shape)))
    is_cast = any(segment.dtype != dtype for segment in segments)
    return BaseOption(tuple(parts), BasePlan(tuple(segments), is_cast))


def cut_out(info: TensorInfo, whole: StoredTensor, first_row: int) -> BaseOption | None:
    """Rows of a larger stored tensor as the base of a smaller one (q out of a fused qkv)."""
    dtype, base_dtype = coded_as(info.dtype), coded_as(whole.dtype)
    if dtype is None or base_dtype is None or not _is_castable(base_dtype, dtype):
        return None
    if len(info.shape) != len(whole.shape) or info.shape[1:] != whole.shape[1:]:
        return None
    if not info.count or first_row + info.shape[0] > whole.shape[0]:
        return None
    start = first_row * prod(info.shape[1:])
    segment = BaseSegment(whole.hash, base_dtype, start, info.count)
    return BaseOption((whole,), BasePlan((segment,), is_cast=base_dtype != dtype))


def identity(tensor: bytes, base_dtype: DType, count: int, dtype: DType) -> BasePlan:
    """A whole tensor of `count` elements under another of as many."""
    return BasePlan((BaseSegment(tensor, base_dtype, 0, count),), is_cast=base_dtype != dtype)


def slice_plan(plan: BasePlan, dtype: DType, start: int, count: int) -> BasePlan:
    """The plan for elements [start, start + count) alone: what one frame of the tensor needs."""
    segments: list[BaseSegment] = []
    begin = 0
    for segment in plan.segments:
        first, last = max(start, begin), min(start + count, begin + segment.count)
        if first < last:
            is_zero = segment.tensor == ZERO_ID
            offset = 0 if is_zero else segment.start + first - begin
            segments.append(BaseSegment(segment.tensor, segment.dtype, offset, last - first))
        begin += segment.count
    return BasePlan(tuple(segments), any(segment.dtype != dtype for segment in segments))


def _is_castable(base: DType, dtype: DType) -> bool:
    return base == dtype or {base, dtype} <= CASTABLE
