"""Frames of the tensors that a push sends: which base by a sample, then the coding itself."""

import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from deltahub.client.errors import LocalFileChanged
from deltahub.client.local.paths import read_at
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.push.base import BaseSet
from deltahub.codecs.files.split import FilePiece
from deltahub.codecs.frames import (
    BasePlan,
    FrameRange,
    TensorSpec,
    assemble,
    encode_frame,
    split_frames,
)
from deltahub.codecs.frames.base_choice import (
    GOOD_ENOUGH,
    MIN_DELTA_BYTES,
    BaseSearch,
    TensorInfo,
    align,
)
from deltahub.codecs.frames.base_plan import slice_plan
from deltahub.codecs.protocol import Buffer, Effort

# A quarter of the largest frame: source, base and result of several at once stay small.
_FRAME_BYTES = 16 << 20
_IN_FLIGHT_BYTES = 48 << 20


class TensorToSend(Protocol):
    """A tensor that is pushed, wherever its bytes are."""

    @property
    def tensor(self) -> bytes:
        """Its content id."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def spec(self) -> TensorSpec: ...

    def part(self, first_byte: int, size: int) -> Buffer:
        """The tensor's bytes from that byte on: where they lie, or read into memory."""
        ...


class BasesToRead(Protocol):
    """Tensors that frames are encoded against."""

    def read(self, tensor: bytes, first_byte: int, out: memoryview) -> None: ...


@runtime_checkable
class BasesInMemory(BasesToRead, Protocol):
    """Such tensors that lie in memory, so that nothing is copied."""

    def part(self, tensor: bytes, first_byte: int, size: int) -> memoryview: ...


@dataclass(frozen=True)
class LocalTensor:
    """A tensor of a file that is pushed."""

    tensor: bytes
    path: Path
    piece: FilePiece

    @property
    def size(self) -> int:
        return self.piece.size

    @property
    def spec(self) -> TensorSpec:
        return self.piece.spec(self.tensor)

    def part(self, first_byte: int, size: int) -> Buffer:
        out = bytearray(size)
        self.read(first_byte, memoryview(out))
        return out

    def read(self, first_byte: int, out: memoryview) -> None:
        """Fills `out` with the tensor's bytes from that byte on."""
        with self.path.open("rb", buffering=0) as file:
            try:
                read_at(file.fileno(), out, self.piece.start + first_byte)
            except EOFError as exc:
                raise LocalFileChanged(f"{self.path} became shorter while it was pushed") from exc


@dataclass(frozen=True)
class Choice:
    """How a tensor will be coded.

    base: the plan over the whole tensor, None for no base. ratio: expected bytes over raw bytes,
    from a sample.
    """

    tensor: TensorToSend
    base: BasePlan | None
    ratio: float

    @property
    def expected_bytes(self) -> int:
        return int(self.ratio * self.tensor.size)


@dataclass(frozen=True)
class EncodedFrame:
    """A frame of a tensor; raw_bytes: what it decodes to."""

    choice: Choice
    data: bytes
    raw_bytes: int


def choose(tensor: LocalTensor, bases: Sequence[BaseSet], sources: Sources) -> Choice:
    """The smallest of: no base, and a delta against each base's matching tensors; by a sample.

    Only what is sent counts. If a chain of deltas gets too long, the hub stores it otherwise.
    """
    spec, piece = tensor.spec, tensor.piece
    search = BaseSearch(spec.dtype, spec.count, tensor.read, sources.read)
    if piece.name is not None and tensor.size >= MIN_DELTA_BYTES:
        info = TensorInfo(piece.name, piece.dtype, piece.shape)
        for base_set in bases:
            base = base_set.match(info)
            if base is not None:
                _offer(search, align(info, base), tensor, sources)
        if search.ratio > GOOD_ENOUGH * search.standalone:
            for base_set in bases:
                for plan in base_set.layouts.find(info, tensor.read):
                    _offer(search, plan, tensor, sources)
    if search.best is None:
        return Choice(tensor, None, min(1.0, search.standalone))
    return Choice(tensor, search.best, search.ratio)


def _offer(
    search: BaseSearch, plan: BasePlan | None, tensor: LocalTensor, sources: Sources
) -> None:
    """Offer the plan, if the bytes of its bases are what the index says.

    Other bytes would make frames that the hub refuses.
    """
    if plan is None or tensor.tensor in plan.base_ids():
        return
    if all(sources.is_verified(base) for base in plan.base_ids()):
        search.offer(plan)


def encode_all(
    choices: Sequence[Choice], sources: BasesToRead, effort: Effort = Effort.DEFAULT
) -> Generator[EncodedFrame, None, None]:
    """Every frame of the tensors, in order; coded by all cores, a bounded number at once."""
    n_workers = max(1, os.cpu_count() or 1)
    waiting: list[tuple[Choice, int, Future[bytes]]] = []
    in_flight = 0
    with ThreadPoolExecutor(n_workers) as pool:
        try:
            for choice in choices:
                spec = choice.tensor.spec
                for part in split_frames(spec, _FRAME_BYTES):
                    size = part.count * spec.dtype.itemsize
                    while waiting and in_flight + size > _IN_FLIGHT_BYTES:
                        done, done_size, task = waiting.pop(0)
                        yield EncodedFrame(done, task.result(), done_size)
                        in_flight -= done_size
                    threads = n_workers if size >= _IN_FLIGHT_BYTES // n_workers else 1
                    coding = _Coding(threads, effort)
                    task = pool.submit(_encode, choice, spec, part, sources, coding)
                    waiting.append((choice, size, task))
                    in_flight += size
            for done, done_size, task in waiting:
                yield EncodedFrame(done, task.result(), done_size)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class _Coding:
    threads: int
    effort: Effort


def _encode(
    choice: Choice, spec: TensorSpec, part: FrameRange, sources: BasesToRead, coding: _Coding
) -> bytes:
    size = part.count * spec.dtype.itemsize
    source = choice.tensor.part(part.start * spec.dtype.itemsize, size)
    if choice.base is not None:
        plan = slice_plan(choice.base, spec.dtype, part.start, part.count)
        if plan.base_ids():  # else all rows of the frame are new
            base = _aligned(plan, spec, part.count, sources)
            return encode_frame(
                spec, part, source, base, plan, "delta", coding.threads, coding.effort
            )
    return encode_frame(spec, part, source, threads=coding.threads, effort=coding.effort)


def _aligned(plan: BasePlan, spec: TensorSpec, count: int, sources: BasesToRead) -> Buffer:
    """The base's bytes for `count` elements of a frame with this plan."""
    size = count * spec.dtype.itemsize
    if plan.is_plain and isinstance(sources, BasesInMemory):
        (segment,) = plan.segments
        return sources.part(segment.tensor, segment.start * spec.dtype.itemsize, size)
    base = bytearray(size)
    assemble(plan, spec.dtype, 0, count, sources.read, memoryview(base))
    return base
