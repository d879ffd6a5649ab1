"""The plan of a frame's base: ranges of other tensors, back to back, cast where types differ.

A plan may have a view: then the base is the transposes of these matrices, or their scaled cast.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from deltahub.codecs.casts import CASTABLE, cast
from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.frames.views import Transposed, View
from deltahub.codecs.ids import ID_BYTES, ZERO_ID

MAX_SEGMENTS: Final = 4096
MAX_TENSOR_BYTES: Final = 1 << 40
_CAST_CHUNK_BYTES: Final = 1 << 22  # source bytes held at once while casting

ReadBase = Callable[[bytes, int, memoryview], None]
"""read(tensor id, first byte, out): fill `out` with bytes of the tensor, from that byte on."""

ReadTensor = Callable[[int, memoryview], None]
"""read(first byte, out): the same for one fixed tensor."""


@dataclass(slots=True, unsafe_hash=True)
class BaseSegment:
    """Elements [start, start + count) of a base tensor, in the base's own dtype.

    With tensor ZERO_ID: `count` zero elements; start is 0 and dtype the coding dtype.
    """

    tensor: bytes
    dtype: DType
    start: int
    count: int


@dataclass(slots=True, unsafe_hash=True)
class BasePlan:
    """Segments of each input in turn; those of one input sum to the frame's count.

    is_cast: a segment's dtype is not the frame's. n_inputs: most codecs have one, the base.
    view: if there is one, the segments are its source, and it makes the base of them.
    """

    segments: tuple[BaseSegment, ...]
    is_cast: bool
    n_inputs: int = 1
    view: View | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the base is one range of one tensor, as it is stored."""
        if len(self.segments) > 1 or self.is_cast or self.view is not None:
            return False
        return self.segments[0].tensor != ZERO_ID

    def base_ids(self) -> tuple[bytes, ...]:
        """The distinct tensors that must be read, in order of first use."""
        ids = dict.fromkeys(segment.tensor for segment in self.segments)
        return tuple(tensor for tensor in ids if tensor != ZERO_ID)

    def fault(self, tensor: bytes, dtype: DType, count: int) -> str | None:
        """What is wrong with this plan for `count` elements of `tensor`, or None."""
        if not 1 <= len(self.segments) <= MAX_SEGMENTS:
            return f"a base plan has 1 to {MAX_SEGMENTS} segments, not {len(self.segments)}"
        total, is_cast, n_ends = 0, False, 0
        for segment in self.segments:
            fault = self._segment_fault(segment, tensor, dtype)
            if fault is not None:
                return fault
            total += segment.count
            n_ends += total % count == 0
            is_cast |= segment.dtype is not dtype
        if self.view is not None:
            fault = self.view.fault(total, count, dtype)
            if fault is None and self.n_inputs > 1:
                fault = "a view of several inputs"
            if fault is not None:
                return fault
        elif total != self.n_inputs * count:
            return f"base segments hold {total} elements, the frame {count}"
        elif n_ends != self.n_inputs:
            return "a base segment reaches into the next input"
        if self.is_cast != is_cast:
            return "the cast rule does not match the segments' element types"
        return None

    def _segment_fault(self, segment: BaseSegment, tensor: bytes, dtype: DType) -> str | None:
        if len(segment.tensor) != ID_BYTES:
            return f"a tensor id has {ID_BYTES} bytes"
        if segment.tensor == tensor:
            return "a tensor cannot be its own base"
        if segment.count < 1 or segment.start < 0:
            return "a base segment is empty or begins before its tensor"
        if (segment.start + segment.count) * segment.dtype.itemsize > MAX_TENSOR_BYTES:
            return "a base segment ends beyond the largest tensor"
        if segment.tensor == ZERO_ID and (segment.start != 0 or segment.dtype != dtype):
            return "a segment of zeros has a start or another element type"
        if self.view is not None:
            fault = self.view.segment_fault(segment.dtype, segment.tensor == ZERO_ID)
            if fault is not None:
                return fault
            dtype = self.view.source_dtype(dtype)
        if segment.dtype != dtype and not {segment.dtype, dtype} <= CASTABLE:
            return f"{segment.dtype.name} is not cast to {dtype.name}"
        return None


def join_plans(plans: Sequence[BasePlan]) -> BasePlan:
    """One plan with the inputs of all of these, in their order."""
    return BasePlan(
        tuple(segment for plan in plans for segment in plan.segments),
        any(plan.is_cast for plan in plans),
        sum(plan.n_inputs for plan in plans),
    )


def slice_plan(plan: BasePlan, dtype: DType, start: int, count: int) -> BasePlan:
    """The part of a whole tensor's plan for elements [start, start + count), as of one frame.

    plan: of one input. dtype: the coding dtype of the tensor that has the base.
    """
    if plan.view is not None:
        first, n, view = plan.view.part(start, count)
        source = slice_plan(replace(plan, view=None), dtype, first, n)
        return replace(source, view=view)
    segments: list[BaseSegment] = []
    begin = 0
    for segment in plan.segments:
        first, last = max(start, begin), min(start + count, begin + segment.count)
        if first < last:
            offset = 0 if segment.tensor == ZERO_ID else segment.start + first - begin
            segments.append(BaseSegment(segment.tensor, segment.dtype, offset, last - first))
        begin += segment.count
    return BasePlan(tuple(segments), any(segment.dtype != dtype for segment in segments))


def assemble(
    plan: BasePlan, dtype: DType, start: int, count: int, read: ReadBase, out: memoryview
) -> None:
    """Fill `out` with the inputs of elements [start, start + count) of a frame, in `dtype`.

    out: count * dtype.itemsize contiguous writable bytes for each input, one after the other.
    Reads fill `out` directly, except that segments to be cast are read in chunks of at most 4 MiB,
    and a view's matrices, too.
    InvalidInput if sizes do not match.
    """
    target = out.cast("B")
    total = sum(segment.count for segment in plan.segments) // plan.n_inputs
    if isinstance(plan.view, Transposed):
        total -= plan.view.first
    if start < 0 or count < 0 or start + count > total:
        raise InvalidInput(f"elements {start} to {start + count} of a plan for {total}")
    size = count * dtype.itemsize
    if len(target) != plan.n_inputs * size:
        raise InvalidInput(
            f"{len(target)} bytes for {plan.n_inputs} x {count} elements of {dtype.name}"
        )
    ends = list(accumulate(segment.count for segment in plan.segments))
    if plan.view is not None:
        source = plan.view.source_dtype(dtype)

        def read_source(first: int, into: memoryview) -> None:
            n = len(into) // source.itemsize
            _assemble(plan.segments, ends, source, first, n, read, into)

        plan.view.read(dtype, start, read_source, target)
        return
    for number in range(plan.n_inputs):
        part = target[number * size : (number + 1) * size]
        _assemble(plan.segments, ends, dtype, number * total + start, count, read, part)


def _assemble(
    segments: tuple[BaseSegment, ...],
    ends: Sequence[int],
    dtype: DType,
    start: int,
    count: int,
    read: ReadBase,
    target: memoryview,
) -> None:
    """The same for elements of all segments back to back. ends: where each segment ends."""
    # A view reads a few elements at a time: to pass over all segments would take longer.
    number, done = bisect_right(ends, start), 0
    while done < count:
        segment, end = segments[number], ends[number]
        n = min(start + count, end) - start - done
        first = segment.start + segment.count - (end - start - done)
        part = target[done * dtype.itemsize : (done + n) * dtype.itemsize]
        _fill(segment, first, dtype, read, part)
        done += n
        number += 1


def _fill(segment: BaseSegment, first: int, dtype: DType, read: ReadBase, out: memoryview) -> None:
    if segment.tensor == ZERO_ID:
        out[:] = bytes(len(out))
        return
    if segment.dtype == dtype:
        read(segment.tensor, first * dtype.itemsize, out)
        return
    step = _CAST_CHUNK_BYTES // segment.dtype.itemsize
    count = len(out) // dtype.itemsize
    scratch = bytearray(min(step, count) * segment.dtype.itemsize)
    for done in range(0, count, step):
        n = min(step, count - done)
        source = memoryview(scratch)[: n * segment.dtype.itemsize]
        read(segment.tensor, (first + done) * segment.dtype.itemsize, source)
        cast(source, segment.dtype, dtype, out[done * dtype.itemsize : (done + n) * dtype.itemsize])
