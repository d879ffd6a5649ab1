"""Transposed bases in chains of deltas: at most one, because each multiplies what is read.

A range of a tensor whose base is transposed needs all of the base's matrix. If the base is made
from a transposed one itself, each range of that matrix needs all of another matrix again.
"""

from collections.abc import Iterable

from deltahub.codecs.frames import BasePlan
from deltahub.codecs.frames.views import Transposed
from deltahub.registry import cancellation
from deltahub.registry.packs.tensor_reader import TensorReader


def is_turned(plan: BasePlan | None) -> bool:
    """Whether the base is transposed."""
    return plan is not None and isinstance(plan.view, Transposed)


def has_turned(reader: TensorReader, tensor_ids: Iterable[int]) -> bool:
    """Whether a transposed base is read to decode these tensors; DataLost.

    Reads the headers of all their frames, and of their bases' frames.
    """
    for tensor in reader.locate(tensor_ids).values():
        for frame in tensor.frames if tensor.bases else ():
            cancellation.check()
            if is_turned(reader.frames.open(frame).view.header.base):
                return True
    return False
