"""Weights whose compressed bytes lie on a GPU."""

import weakref
from typing import Any

import torch

from deltahub.methods.inference.cards import Card, Resident
from deltahub.methods.inference.sources import Source


class CardSource(Source):
    """A source that decodes on a GPU. Its origin, on the CPU, says which weight it is.

    A weight is compared with its checksums when it is decoded for the first time. Its bytes on the
    GPU do not change, so that later passes need neither that nor a wait.
    """

    decodes_rows = False

    def __init__(self, origin: Source, card: Card, resident: Resident) -> None:
        super().__init__(origin.weight, origin.bits, origin.threads)
        self.origin = origin
        self._card = card
        self._resident = resident
        # States of the origin: decoded for the first time, and found to be sound.
        self._unchecked: set[str] = set()
        self._sound: set[str] = set()
        # The GPU may still read the compressed bytes when nobody else needs them any more.
        weakref.finalize(self, card.finish).atexit = False

    @property
    def state(self) -> str:
        return self.origin.state

    @property
    def device(self) -> torch.device:
        return self._card.torch_device

    @property
    def size_bytes(self) -> int:
        """Bytes in the GPU's memory."""
        return self._resident.size_bytes

    @property
    def is_unchecked(self) -> bool:
        """Whether `check` has anything to find out."""
        return bool(self._unchecked)

    def decode_into(self, out: torch.Tensor) -> None:
        """Fill a contiguous tensor on the GPU in the order of the current stream; see decode_on."""
        self.decode_on(out, self._card.current_stream())

    def decode_on(self, out: torch.Tensor, stream: Any) -> None:
        """The same in the order of a stream, without a wait: `check` tells damage."""
        state = self.state
        verify = state not in self._sound
        self._resident.decode_into(out.reshape(-1).view(torch.uint8), stream, verify=verify)
        if verify:
            self._unchecked.add(state)

    def decode(self) -> torch.Tensor:
        out = super().decode()
        self.check(self._card.current_stream())
        return out

    def check(self, stream: Any) -> None:
        """Wait for the stream if need be. CorruptFrame names the weight if it is damaged."""
        if self._unchecked:
            states, self._unchecked = self._unchecked, set()
            self._resident.check(stream)
            self._sound |= states

    def decode_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return self.decode()[rows]


def source_on(source: Source, card: Card | None) -> Source:
    """The source of the same weight on a GPU, or on the CPU for None. Modules share it."""
    origin = source.origin if isinstance(source, CardSource) else source
    if card is None:
        return origin
    found = origin.on_cards.get(card.torch_device)
    if found is None:
        found = CardSource(origin, card, origin.upload(card))
        origin.on_cards[card.torch_device] = found
    return found
