"""A card whose kernels run on this CPU, and whose second stream is early or late."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from deltahub.codecs.cuda.device import Bytes, Launch, Memory
from deltahub.methods.inference.modules import CompressedModule
from support.cuda.kernels import EmulatedDevice

FIRST, SECOND = "the caller's stream", "the second stream"


class StreamsDevice(EmulatedDevice):
    """Runs the work of the second stream when somebody waits for it, or at once."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__()
        self.is_late = is_late
        self.may_begin = False  # whether the second stream has waited for the caller's
        self.queued: list[Callable[[], None]] = []

    def upload_on(self, stream: object, memory: Memory, data: Bytes) -> None:
        copy: Bytes = np.array(data)
        self._do(stream, lambda: super(StreamsDevice, self).upload(memory, copy))

    def launch(self, stream: object, launch: Launch) -> None:
        self._do(stream, lambda: super(StreamsDevice, self).launch(stream, launch))

    def key_of(self, stream: object) -> int:
        return hash(stream)

    def run_queued(self) -> None:
        queued, self.queued = self.queued, []
        for work in queued:
            work()

    def _do(self, stream: object, work: Callable[[], None]) -> None:
        if stream == SECOND and self.is_late:
            self.queued.append(work)
        else:
            work()
        # Layers that the caller's stream has not finished may still read the buffer.
        assert stream == FIRST or self.may_begin


class EmulatedCard:
    """A card beside which torch computes on the CPU."""

    torch_device = torch.device("cpu")

    def __init__(self, *, is_late: bool = False) -> None:
        self.decoder = StreamsDevice(is_late=is_late)
        self.stream = FIRST

    def current_stream(self) -> Any:
        return self.stream

    def second_stream(self) -> Any:
        return SECOND

    def wait(self, stream: Any, earlier: Any) -> None:
        if earlier == SECOND:
            self.decoder.run_queued()
            self.decoder.may_begin = False
        elif stream == SECOND:
            self.decoder.may_begin = True

    def finish(self) -> None:
        self.decoder.run_queued()


def place(model: Any, card: EmulatedCard) -> Any:
    """The model, whose compressed weights move to the card."""
    assert isinstance(model, nn.Module)
    for each in model.modules():
        if isinstance(each, CompressedModule):
            each.place(card)
    return model
