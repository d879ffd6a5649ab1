"""Encodes one frame of a tensor, with or without a base, and never larger than raw."""

from collections.abc import Callable

from deltahub.codecs.frames import BasePlan, FrameRange, TensorSpec, assemble, encode_frame
from deltahub.codecs.protocol import Effort

Read = Callable[[int, memoryview], None]
"""read(first_byte, out): fill `out` with the tensor's bytes from that byte on."""

ReadBase = Callable[[bytes, int, memoryview], None]
PlanOf = Callable[[FrameRange], BasePlan]


def encode_part(
    spec: TensorSpec,
    part: FrameRange,
    source: bytearray,
    plan: BasePlan | None,
    read_base: ReadBase,
    effort: Effort,
    threads: int,
) -> bytes:
    """The frame: a delta of the planned base, or standalone if that is not larger."""
    if plan is None:
        return encode_frame(spec, part, source, effort=effort, threads=threads)
    base = bytearray(len(source))
    assemble(plan, spec.dtype, 0, part.count, read_base, memoryview(base))
    return encode_frame(spec, part, source, base, plan, "delta", threads, effort)
