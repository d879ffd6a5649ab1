"""What a method would keep of a tensor, and the bytes that it would take, without storing it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltahub.codecs._native import elect_unified, merge_task
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_plan import join_plans
from deltahub.codecs.frames.encode import FrameRange, TensorSpec, encode_frame, split_frames
from deltahub.codecs.ids import ZERO_ID
from deltahub.codecs.masks.codec import Masks
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.merging.emr import Sums
from deltahub.registry.results.tensors import UNNAMED
from deltahub.workers.jobs.merge.passes.outcomes import MAIN, outcome
from deltahub.workers.jobs.merge.passes.parts import plan_of

# Ids of tensors that are not stored. Nothing in a frame's length depends on them.
_BASE, _UNIFIED = b"\2" * len(ZERO_ID), b"\3" * len(ZERO_ID)


@dataclass(frozen=True)
class Tensors:
    """One tensor, or a part of it as a tensor of its own: the words of base and tasks."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    base: memoryview
    tasks: Mapping[str, memoryview]

    @property
    def spec(self) -> TensorSpec:
        count = len(self.base) // self.dtype.itemsize
        rows = self.shape[0] if len(self.shape) > 1 else 1
        return TensorSpec(UNNAMED, self.dtype, rows, count // max(rows, 1))


@dataclass(frozen=True)
class Measured:
    """Encoded bytes by branch, and the sums of each task: for emr as `Sums` says, for other methods
    uni is what the method keeps.
    """

    n_bytes: Mapping[str, int]
    sums: Sequence[Sums]


def measure(
    arguments: MergeArguments, method: str, tensors: Tensors, effort: Effort, threads: int
) -> Measured:
    """Run the method on a tensor. lossless has no outcome of its own."""
    if method == "emr":
        return _measure_emr(tensors, effort, threads)
    given = (tensors.dtype, tensors.shape, tensors.base, tensors.tasks)
    found = outcome(arguments, method, tensors.name, given)
    n_bytes = {
        ref: _delta_bytes(tensors, words, effort, threads) for ref, words in found.made.items()
    }
    return Measured(n_bytes, found.sums)


def _measure_emr(tensors: Tensors, effort: Effort, threads: int) -> Measured:
    kind = WORD_KINDS[tensors.dtype]
    count = len(tensors.base) // tensors.dtype.itemsize
    unified = memoryview(bytearray(len(tensors.base)))
    tasks = [*tensors.tasks.values()]
    sums = elect_unified(kind, tensors.base, [*tasks], unified, threads)
    n_bytes = {MAIN: _delta_bytes(tensors, unified, effort, threads)}
    made = memoryview(bytearray(len(tensors.base)))
    for task, words in tensors.tasks.items():
        # The bits do not depend on the scale.
        merge_task(kind, tensors.base, unified, words, 1.0, made, threads)
        n_bytes[task] = sum(
            len(_masked(tensors, unified, made, part, threads)) for part in _parts(tensors)
        )
    return Measured(n_bytes, [Sums.of_list(count, each) for each in sums])


def _parts(tensors: Tensors) -> list[FrameRange]:
    return split_frames(tensors.spec)


def _span(tensors: Tensors, part: FrameRange) -> slice:
    size = tensors.dtype.itemsize
    return slice(part.start * size, (part.start + part.count) * size)


def _delta_bytes(tensors: Tensors, words: memoryview, effort: Effort, threads: int) -> int:
    n_bytes = 0
    for part in _parts(tensors):
        span = _span(tensors, part)
        plan = plan_of(_BASE, tensors.dtype, part)
        data = (words[span], tensors.base[span])
        frame = encode_frame(tensors.spec, part, *data, plan, "delta", threads, effort)
        n_bytes += len(frame)
    return n_bytes


def _masked(
    tensors: Tensors, unified: memoryview, made: memoryview, part: FrameRange, threads: int
) -> bytes:
    span = _span(tensors, part)
    plan = join_plans([plan_of(each, tensors.dtype, part) for each in (_BASE, _UNIFIED)])
    both = b"".join([tensors.base[span], unified[span]])
    return encode_frame(tensors.spec, part, made[span], both, plan, Masks(), threads)
