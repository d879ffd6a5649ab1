"""Chooses a tensor's base: aligns candidates with the tensor, and codes a sample against each.

Client and hub share these rules. Each finds its own candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType, coding_dtype
from deltahub.codecs.frames.base_plan import (
    BasePlan,
    BaseSegment,
    ReadBase,
    ReadTensor,
    assemble,
)
from deltahub.codecs.frames.choose_codec import sampled_ranges
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, encode_frame
from deltahub.codecs.frames.nearness import nearness, to_bf16
from deltahub.codecs.ids import ZERO_ID

# Below this size the header and tables of a delta outweigh what it can save.
MIN_DELTA_BYTES: Final = 1024
# A base of the same name whose delta is below this share of the standalone size ends the search.
GOOD_ENOUGH: Final = 0.75
# A delta makes the tensor depend on its base, so it must save this share of the standalone size.
MUST_SAVE: Final = 0.03
# Candidates come most trusted first, so the delta of a later one must be smaller by this share.
MUST_BEAT: Final = 0.02
# In two unrelated trainings, about 7 % of the weights are within a quarter of an octave.
MIN_NEARNESS: Final = 0.25
# Most bytes that a reader of a chain of deltas should read for a byte of a tensor. Chains up to
# FREE_DEPTH never need more than three.
MAX_CHAIN_READ: Final = 3.0
FREE_DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as its safetensors header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class BaseTensor(TensorInfo):
    """A tensor that may serve as a base. hash: its content id, 32 bytes."""

    hash: bytes


def coded_as(name: str) -> DType | None:
    """The dtype that elements of this safetensors dtype are coded in, None if coded as bytes.

    InvalidInput for a name that safetensors does not have.
    """
    dtype = coding_dtype(name)
    return dtype if dtype.name == name else None


def align(info: TensorInfo, base: BaseTensor) -> BasePlan | None:
    """A plan of one base for the whole tensor, element by element; None if they do not fit.

    All dimensions but the first must be equal. Rows that the base lacks are predicted as zeros.
    Rows of the base beyond the tensor are left out. Float types are cast.
    """
    if not _has_equal_rows(info, base):
        return None
    return join(info, [(base, 0, min(info.count, base.count))])


def _has_equal_rows(info: TensorInfo, base: TensorInfo) -> bool:
    return len(info.shape) == len(base.shape) and info.shape[1:] == base.shape[1:]


Range: TypeAlias = tuple[BaseTensor, int, int]
"""(base, first element, elements)"""


def join(info: TensorInfo, ranges: Sequence[Range]) -> BasePlan | None:
    """A plan of these ranges back to back, then zeros: q, k and v for a fused qkv, for example.

    None if a range is empty or cannot be cast, or if the ranges exceed the tensor.
    """
    dtype = coded_as(info.dtype)
    if dtype is None:
        return None
    segments: list[BaseSegment] = []
    for base, start, count in ranges:
        base_dtype = coded_as(base.dtype)
        if base_dtype is None or count == 0:
            return None
        if base_dtype != dtype and not {base_dtype, dtype} <= CASTABLE:
            return None
        segments.append(BaseSegment(base.hash, base_dtype, start, count))
    is_cast = any(segment.dtype != dtype for segment in segments)
    missing = info.count - sum(segment.count for segment in segments)
    if missing < 0:
        return None
    if missing:
        segments.append(BaseSegment(ZERO_ID, dtype, 0, missing))
    return BasePlan(tuple(segments), is_cast)


def average_cost(first: float, step: float, room: int) -> float:
    """Bytes (or shares) a tensor, over a tensor and the `room` further steps of its chain.

    first: of the tensor. step: of a delta against the one before, which it may be itself.
    """
    return (first + room * min(first, step)) / (room + 1)


class BaseSearch:
    """One tensor's sample, coded against each offered base; keeps the best delta.

    standalone: coded bytes of the sample without a base, over its raw bytes. ratio: the same of the
    best delta so far, or `standalone` if there is none. best: the plan of that delta.

    The best is the smallest. But where a chain of deltas is at its limit, one delta has to be
    larger than a step, so that the chain begins anew. Then the best is the one with the least bytes
    on the average over itself and the steps that its chain has room for.
    """

    def __init__(self, dtype: DType, count: int, read: ReadTensor, read_base: ReadBase) -> None:
        """Reads and codes the sample: at most 49,152 of the tensor's `count` elements.

        dtype: the coding dtype. Errors of `read` and `read_base` pass through.
        """
        self._dtype = dtype
        self._read_base = read_base
        self._ranges = list(sampled_ranges(count))
        self._count = sum(n for _, n in self._ranges)
        self._sample = bytearray(self._count * dtype.itemsize)
        for start, _, out in self._split(self._sample):
            read(start * dtype.itemsize, out)
        self.standalone = self._coded_share(None)
        self._too_deep = self.standalone
        # Plan -> (ratio, room), in the order of the offers, of deltas that save enough.
        self._offers: dict[BasePlan, tuple[float, int]] = {}
        self._seen: set[BasePlan] = set()

    @property
    def best(self) -> BasePlan | None:
        """The plan of the best delta so far; None without one."""
        best, limit = None, float("inf")
        for plan, (ratio, room) in self._offers.items():
            cost = self._cost(ratio, room)
            if cost < limit:
                best, limit = plan, cost * (1 - MUST_BEAT)
        return best

    @property
    def ratio(self) -> float:
        """Coded bytes of the best delta, or of the standalone sample, over its raw bytes."""
        best = self.best
        return self.standalone if best is None else self._offers[best][0]

    def offer(self, plan: BasePlan, room: int = 0, depth: int = 1) -> bool:
        """Whether a delta against this base is now the best.

        plan: over the whole tensor. room: how many further deltas the chain takes on top of it.
        depth: of the delta. If a chain of such deltas would make its readers read more than
        MAX_CHAIN_READ bytes for a byte, the base counts as too deep.
        """
        if plan in self._seen:
            return False
        self._seen.add(plan)
        ratio = self._delta_share(plan)
        if ratio is None or ratio >= self.standalone * (1 - MUST_SAVE):
            return False
        if depth > FREE_DEPTH and self.standalone + depth * ratio > MAX_CHAIN_READ:
            self._too_deep = min(self._too_deep, ratio)
            return False
        self._offers[plan] = ratio, room
        return self.best is plan

    def note_too_deep(self, plan: BasePlan) -> None:
        """Remember how small a delta would be against a base that the depth limit forbids."""
        ratio = self._delta_share(plan)
        if ratio is not None:
            self._too_deep = min(self._too_deep, ratio)

    def pays_as_anchor(self, room: int = 1) -> bool:
        """Whether the tensor should be standalone, because its chain of deltas is at its limit.

        That takes less on the average over the tensor and its next revisions, which are then steps
        from it. room: how many of them a chain from an anchor takes.
        """
        best = self.best
        ratio, left = (self.standalone, 0) if best is None else self._offers[best]
        return self._cost(self.standalone, room) < self._cost(ratio, left)

    def _cost(self, ratio: float, room: int) -> float:
        return average_cost(ratio, self._too_deep, room)

    def _delta_share(self, plan: BasePlan) -> float | None:
        """Coded bytes of the delta over the raw bytes; None for a base of an unrelated training.

        Such a delta saves a few percent, because all weights have similar exponents. That is too
        little to depend on an unrelated model.
        """
        base = bytearray(len(self._sample))
        for start, count, out in self._split(base):
            assemble(plan, self._dtype, start, count, self._read_base, out)
        if self._dtype in CASTABLE:
            patterns = to_bf16(self._dtype, self._sample), to_bf16(self._dtype, base)
            if nearness(*patterns) < MIN_NEARNESS:
                return None
        return self._coded_share(base)

    def _coded_share(self, base: bytearray | None) -> float:
        # Placeholder ids: only the size of the frame is used.
        spec = TensorSpec(b"\x01" * 32, self._dtype, 1, self._count)
        part = FrameRange(0, self._count, 1, self._count)
        if base is None:
            return len(encode_frame(spec, part, self._sample)) / len(self._sample)
        segment = BaseSegment(b"\x02" * 32, self._dtype, 0, self._count)
        plan = BasePlan((segment,), is_cast=False)
        frame = encode_frame(spec, part, self._sample, base, plan, "fm_delta")
        return len(frame) / len(self._sample)

    def _split(self, buffer: bytearray) -> Iterator[tuple[int, int, memoryview]]:
        """(first element, elements, view into the buffer) of each sampled range."""
        position = 0
        for start, count in self._ranges:
            size = count * self._dtype.itemsize
            yield start, count, memoryview(buffer)[position : position + size]
            position += size
