"""The buffers that a model's weights are decoded into, one layer after the other."""

import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock, local
from typing import Any, Self

import torch

from deltahub.codecs.exports.coding import AnyCoding
from deltahub.methods.inference.sources import Source


class _Held(local):
    """id of a source -> the plain tensors that this thread computes with, the first of which is in
    the weight's own dtype.
    """

    def __init__(self) -> None:
        self.tensors: dict[int, dict[torch.dtype, torch.Tensor]] = {}


_all: "weakref.WeakSet[Workspace]" = weakref.WeakSet()


def _forget_threads() -> None:
    """A process that was forked has none of its parent's threads."""
    for workspace in _all:
        workspace.start_anew()


os.register_at_fork(after_in_child=_forget_threads)


class Workspace:
    """Two buffers as large as the largest weight: one that is used, and one for the next weight,
    which a thread decodes meanwhile.

    The order of a model's layers is learnt from the first pass. One thread at a time computes with
    a model; others wait.
    """

    def __init__(self, prefetch: bool = True) -> None:
        self._lock = RLock()
        self._buffers = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]
        # Where the modules of one model have their weights: None for the CPU, or a GPU.
        self.places: weakref.WeakValueDictionary[torch.device | None, Workspace]
        self.places = weakref.WeakValueDictionary()
        self.places[None] = self
        # Weights of the model that no GPU decodes.
        self.integers: dict[str, AnyCoding] = {}
        self._at = 0  # the buffer that is used
        self.prefetches = prefetch
        self._threads: ThreadPoolExecutor | None = None
        self._next: dict[int, Source] = {}  # id of a source -> the source used after it
        self._last: Source | None = None
        self._waiting: tuple[Source, str, Callable[[], torch.Tensor]] | None = None
        self._held = _Held()
        _all.add(self)

    def start_anew(self) -> None:
        """Forget the threads that use the workspace."""
        self._lock, self._held = RLock(), _Held()
        self._threads = self._waiting = None

    @contextmanager
    def weight_of(self, source: Source) -> Iterator[None]:
        """`held` gives the weight as a plain tensor, until the context ends."""
        held = self._held.tensors
        if id(source) in held:
            yield
            return
        with self._lock:
            # A module within a module gets memory of its own.
            plain = source.decode() if held else self._plain(source)
            held[id(source)] = {plain.dtype: plain}
            try:
                yield
            finally:
                del held[id(source)]

    def held(self, source: Source, dtype: torch.dtype) -> torch.Tensor | None:
        """The weight in a dtype, if this thread is within `weight_of`."""
        tensors = self._held.tensors.get(id(source))
        if tensors is None:
            return None
        if dtype not in tensors:
            tensors[dtype] = next(iter(tensors.values())).to(dtype)
        return tensors[dtype]

    def is_held(self, source: Source, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a view of the weight that this thread computes with."""
        at = tensor.untyped_storage().data_ptr()
        held = self._held.tensors.get(id(source), {})
        return at != 0 and any(at == each.untyped_storage().data_ptr() for each in held.values())

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Nothing is decoded, nor was before, until the context ends."""
        with self._lock:
            if self._waiting is not None:
                self._waiting[2]()
                self._waiting = None
            yield

    def _plain(self, source: Source) -> torch.Tensor:
        found: torch.Tensor | None = None
        if self._waiting is not None:
            expected, state, finish = self._waiting
            self._waiting = None
            tensor = finish()
            if expected is source and state == source.state:
                self._at = 1 - self._at
                found = tensor
        if found is None:
            found = self._decode(self._at, source)
        if self._last is not None:
            self._next[id(self._last)] = source
        self._last = source
        upcoming = self._next.get(id(source))
        if self.prefetches and upcoming is not None and upcoming is not source:
            self._waiting = upcoming, upcoming.state, self._begin(1 - self._at, upcoming)
        return found

    def _begin(self, at: int, source: Source) -> Callable[[], torch.Tensor]:
        """Begin to decode into a buffer; a function that waits for the result."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="deltahub-decode")
        return self._threads.submit(self._decode, at, source).result

    def _decode(self, at: int, source: Source) -> torch.Tensor:
        out = self._room(at, source)
        source.decode_into(out)
        return out

    def _room(self, at: int, source: Source) -> torch.Tensor:
        """The begin of a buffer as the source's tensor."""
        if self._buffers[at].numel() < source.plain_bytes:
            # The smaller buffer goes first, so that there are never three.
            self._buffers[at] = torch.empty(0, dtype=torch.uint8)
            self._buffers[at] = torch.empty(
                source.plain_bytes, dtype=torch.uint8, device=source.device
            )
        return self._buffers[at][: source.plain_bytes].view(source.dtype).view(source.shape)

    def check_pass(self, *_: Any) -> None:
        """The hook for the end of a pass. CorruptFrame if a weight on a GPU is damaged."""
        for workspace in [*self.places.values()]:
            workspace.check()

    def check(self) -> None:
        """What the CPU decodes is checked at once."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Copies of a model take turns, as its layers do.
        return self
