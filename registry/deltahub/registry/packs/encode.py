"""Coding one tensor into frames: against a base, or alone, never larger than raw."""

from collections.abc import Callable

from deltahub.codecs.frames import (
    BasePlan,
    FrameRange,
    TensorSpec,
    assemble,
    encode_frame,
    split_frames,
)
from deltahub.codecs.protocol import Effort
from deltahub.registry.packs.encoder_rank import rank_alone, rank_of
from deltahub.registry.packs.writer import PackSpool

Read = Callable[[int, memoryview], None]
"""read(first_byte, out): fill `out` with the tensor's bytes from that byte on."""

ReadBase = Callable[[bytes, int, memoryview], None]
PlanOf = Callable[[FrameRange], BasePlan]


def encode_tensor(
    spool: PackSpool,
    spec: TensorSpec,
    read: Read,
    *,
    max_frame_bytes: int,
    plan_of: PlanOf | None = None,
    read_base: ReadBase | None = None,
    threads: int = 1,
    effort: Effort = Effort.DEFAULT,
    progress: Callable[[int], None] = lambda n: None,
) -> None:
    """Add all frames of a tensor to a spool. Memory: four frames of max_frame_bytes.

    plan_of, read_base: the base of each frame and how to read it, or neither. progress(n): called
    after every frame of n decoded bytes; may raise to stop.
    """
    for part in split_frames(spec, max_frame_bytes):
        source = bytearray(part.count * spec.dtype.itemsize)
        read(part.start * spec.dtype.itemsize, memoryview(source))
        plan = None if plan_of is None else plan_of(part)
        frame = encode_part(spec, part, source, plan, read_base, effort, threads)
        size = len(source)
        del source
        spool.add(frame, rank_alone() if plan is None else rank_of(effort))
        progress(size)


def encode_part(
    spec: TensorSpec,
    part: FrameRange,
    source: bytearray,
    plan: BasePlan | None,
    read_base: ReadBase | None,
    effort: Effort,
    threads: int,
) -> bytes:
    """One frame of these elements: a delta of the planned base, or alone where that is as small."""
    if plan is None or read_base is None:
        return encode_frame(spec, part, source, effort=effort, threads=threads)
    base = bytearray(len(source))
    assemble(plan, spec.dtype, 0, part.count, read_base, memoryview(base))
    return encode_frame(spec, part, source, base, plan, "delta", threads, effort)
