"""Reads a batch of tensors from the object store. What does not come from there is left over."""

from collections.abc import Callable, Sequence
from typing import Final

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import NotFound
from deltahub.client.local.tensor_sources import MissingTensor
from deltahub.client.pull.frame_stream import FrameReader
from deltahub.client.pull.links.source import LinkFailed, LinkSource, WrongBytes
from deltahub.client.pull.plan import Slot
from deltahub.client.records import FrameLink, FrameLinks
from deltahub.codecs.errors import CodecError, CorruptFrame

# How often links are asked for again without a tensor that came.
_MOST_TRIES: Final = 3


class LinkedBatch:
    """One batch of tensors. A tensor is finished when all its frames came and its hash is right.

    is_written: whether the file has the bytes of a slot. finish: records a slot as done.
    """

    def __init__(
        self,
        source: LinkSource,
        reader: FrameReader,
        ask: Callable[[Sequence[str]], FrameLinks],
        is_written: Callable[[Slot], bool],
        finish: Callable[[Slot], None],
    ) -> None:
        self._source = source
        self._reader = reader
        self._ask = ask
        self._is_written = is_written
        self._finish = finish
        self._pending: dict[bytes, Slot] = {}
        self._left: list[Slot] = []

    def run(self, batch: Sequence[Slot]) -> list[Slot]:
        """The slots that must come through the hub. HubError if the hub cannot be asked."""
        self._pending = {slot.tensor: slot for slot in batch}
        tries = 0
        while self._pending and self._source.is_on and tries < _MOST_TRIES:
            before = len(self._pending)
            try:
                page = self._ask([tensor.hex() for tensor in self._pending])
            except NotFound:
                break  # the hub says what is gone when its own frames are asked
            self._read_page(page, [*self._pending.values()][: page.n_tensors])
            tries = 0 if len(self._pending) < before else tries + 1
        return sorted([*self._left, *self._pending.values()], key=lambda slot: slot.start)

    def _read_page(self, page: FrameLinks, asked: Sequence[Slot]) -> None:
        linked = {frame.tensor for link in page.links for frame in link.frames}
        for number, slot in enumerate(asked):
            if number not in linked:
                self._leave(slot)
        covered: dict[bytes, int] = {}
        for link in page.links:
            if not self._source.is_on:
                return
            try:
                self._read_link(link, asked, covered)
            except LinkFailed as failure:
                self._source.failed(failure)
                if not isinstance(failure, WrongBytes):
                    return  # expired or broken: the other links are as old, so new ones are asked

    def _read_link(self, link: FrameLink, asked: Sequence[Slot], covered: dict[bytes, int]) -> None:
        with self._source.open(link) as body:
            for frame in link.frames:
                slot = asked[frame.tensor]
                # Nothing is written over a tensor that was verified.
                if slot.tensor not in self._pending:
                    raise WrongBytes("the hub named more frames than a tensor has")
                body.begin_frame(frame.length)
                try:
                    size = self._reader.read_frame(body, slot)
                    body.end_frame()
                    covered[slot.tensor] = covered.get(slot.tensor, 0) + size
                    self._check(slot, covered[slot.tensor])
                except MissingTensor:
                    self._leave(slot)  # encoded again since the plan was read
                    raise LinkFailed("a frame needs a tensor that is not here") from None
                except CodecError as exc:
                    self._leave(slot)
                    raise WrongBytes(f"its bytes are wrong ({exc.code})") from exc

    def _check(self, slot: Slot, covered: int) -> None:
        if covered < slot.size:
            return
        if covered > slot.size or not self._is_written(slot):
            raise CorruptFrame("the tensor's hash is wrong")
        self._finish(slot)
        del self._pending[slot.tensor]

    def _leave(self, slot: Slot) -> None:
        if self._pending.pop(slot.tensor, None) is not None:
            self._left.append(slot)


def ask_for_links(
    api: Api, name: str, commit: str, origin: str
) -> Callable[[Sequence[str]], FrameLinks]:
    """A function that asks the hub for links that lead to this origin."""
    return lambda tensors: api.get_frame_links(name, commit, tensors, origin)
