"""Tells the store which bytes of packs a reader will need next, so that they are on their way."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from deltahub.registry.packs.locations import FrameLocation, TensorLocation
from deltahub.registry.storage.base import Store
from deltahub.registry.storage.keys import pack_key

# A reader is told of in bytes of its own output: at first few, because the first byte shall come
# soon, then twice as many each time.
_FIRST_WINDOW: Final = 2 << 20
_WINDOW: Final = 32 << 20
# Frames are told of in parts of at most this many stored bytes.
_STEP_BYTES: Final = 2 << 20
# Ranges of one pack that lie closer together than this are one range.
_GAP_BYTES: Final = 64 << 10
# Bases of bases that are told of. More are read without a hint.
_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Stored bytes that are needed for the reader's output from byte `position` on."""

    position: int
    pack_id: str
    start: int
    end: int


class ReadAhead:
    """Runs through the spans of one reader, ahead of it."""

    def __init__(self, store: Store, spans: Iterator[Span]) -> None:
        """spans: in order of position."""
        self._store = store
        self._spans = spans
        self._next = next(spans, None)
        self._window = _FIRST_WINDOW
        self._told_to = 0
        self.advance(0)

    def advance(self, position: int) -> None:
        """The reader's output has reached this byte."""
        if self._next is None or position + self._window // 2 < self._told_to:
            return
        self._told_to = position + self._window
        ranges: dict[str, list[tuple[int, int]]] = {}
        while self._next is not None and self._next.position < self._told_to:
            span = self._next
            of_pack = ranges.setdefault(span.pack_id, [])
            if of_pack and 0 <= span.start - of_pack[-1][1] <= _GAP_BYTES:
                of_pack[-1] = (of_pack[-1][0], span.end)
            else:
                of_pack.append((span.start, span.end))
            self._next = next(self._spans, None)
        for pack_id, of_pack in ranges.items():
            for start, end in of_pack:
                self._store.prefetch(pack_key(pack_id), start, end)
        self._window = min(2 * self._window, _WINDOW)


def frame_spans(position: int, frame: FrameLocation, first: int, end: int) -> Iterator[Span]:
    """The spans for bytes [first, end) of the frame's tensor; position: of `first`.

    A frame does not say before it is read where its blocks are. The spans take them to be equally
    small, which is near enough for a hint.
    """
    low, high = max(first, frame.start), min(end, frame.start + frame.size)
    if low >= high:
        return
    start = frame.length * (low - frame.start) // frame.size
    stop = -(-frame.length * (high - frame.start) // frame.size)
    for at in range(start, stop, _STEP_BYTES):
        reached = position + low - first + (at - start) * (high - low) // (stop - start)
        until = min(stop, at + _STEP_BYTES)
        yield Span(reached, frame.pack_id, frame.offset + at, frame.offset + until)


def tensor_spans(
    position: int,
    tensor: TensorLocation,
    first: int,
    end: int,
    bases_of: Callable[[TensorLocation], Iterable[TensorLocation]],
    depth: int = 0,
) -> Iterator[Span]:
    """The spans for bytes [first, end) of a tensor and of its bases; position: of `first`.

    bases_of: those bases of a tensor that will be read from packs.
    """
    own = (span for frame in tensor.frames for span in frame_spans(position, frame, first, end))
    of_bases = []
    if depth < _DEPTH and tensor.size:
        for base in bases_of(tensor):
            low, high = (byte * base.size // tensor.size for byte in (first, end))
            of_bases.append(tensor_spans(position, base, low, high, bases_of, depth + 1))
    return heapq.merge(own, *of_bases, key=attrgetter("position")) if of_bases else own
