"""The buffers of a model whose weights lie on a GPU."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from deltahub.methods.inference.card_sources import CardSource
from deltahub.methods.inference.cards import Card
from deltahub.methods.inference.sources import Source
from deltahub.methods.inference.workspace import Workspace


class CardWorkspace(Workspace):
    """Two buffers on a GPU. The next weight is decoded on a second stream, while the stream of the
    caller computes.
    """

    def __init__(
        self,
        prefetch: bool,
        card: Card,
        places: "weakref.WeakValueDictionary[torch.device | None, Workspace]",
    ) -> None:
        super().__init__(prefetch)
        self.places = places
        self._card = card
        self._stream: Any = None  # on which the buffers were used last
        self._unchecked: dict[int, CardSource] = {}
        # torch gives memory to others that the second stream may still write.
        weakref.finalize(self, card.finish).atexit = False

    def check(self) -> None:
        if not self._unchecked:
            return
        with self._lock:
            stream = self._card.current_stream()
            self._card.wait(stream, self._card.second_stream())
            while self._unchecked:
                first = next(iter(self._unchecked))
                self._unchecked.pop(first).check(stream)

    def _plain(self, source: Source) -> torch.Tensor:
        current = self._card.current_stream()
        if self._stream is not None and self._stream != current:
            # The layers of another stream may still read the buffers.
            self._card.wait(current, self._stream)
        self._stream = current
        return super()._plain(source)

    def _begin(self, at: int, source: Source) -> Callable[[], torch.Tensor]:
        card, second = self._card, self._card.second_stream()
        out = self._room(at, source)
        card.wait(second, card.current_stream())  # the layer before may still read the buffer
        self._decode_on(out, source, second)

        # It does not refer to this workspace, whose memory goes as soon as nobody has it.
        def finish() -> torch.Tensor:
            card.wait(card.current_stream(), second)
            return out

        return finish

    def _decode(self, at: int, source: Source) -> torch.Tensor:
        out = self._room(at, source)
        self._decode_on(out, source, self._card.current_stream())
        return out

    def _room(self, at: int, source: Source) -> torch.Tensor:
        if self._buffers[at].numel() < source.plain_bytes:
            self._card.finish()  # other streams may still use the buffer that is replaced
        return super()._room(at, source)

    def _decode_on(self, out: torch.Tensor, source: Source, stream: Any) -> None:
        assert isinstance(source, CardSource), "a module moves with its workspace"
        source.decode_on(out, stream)
        if source.is_unchecked:
            self._unchecked[id(source)] = source


def workspace_on(workspace: Workspace, card: Card | None) -> Workspace:
    """The workspace of the same model on a GPU, or on the CPU for None. Modules share it."""
    key = None if card is None else card.torch_device
    found = workspace.places.get(key)
    if found is None:
        if card is None:
            found = Workspace(workspace.prefetches)
            found.places = workspace.places
        else:
            found = CardWorkspace(workspace.prefetches, card, workspace.places)
        workspace.places[key] = found
    return found
