"""Frames of the tensors that a push sends: which base by a sample, then the coding itself."""

import os
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deltahub.client.errors import LocalFileChanged
from deltahub.client.local.paths import read_at
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.push.base import BaseSet, BaseTensor
from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.split import FilePiece
from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    FrameRange,
    TensorSpec,
    assemble,
    encode_frame,
    parse_header,
    raw_frame_length,
    split_frames,
)
from deltahub.codecs.frames.choose_codec import sample_runs

# A quarter of the largest frame: source, base and result of several at once stay small.
_FRAME_BYTES = 16 << 20
_IN_FLIGHT_BYTES = 48 << 20
# Below this a delta's header and tables outweigh what it can save.
_MIN_DELTA_BYTES = 1024
# A delta ties the tensor to its base; it must be worth at least this share of the raw bytes.
_MUST_SAVE = 0.03


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

    def read(self, first_byte: int, out: memoryview) -> None:
        """Fills `out` with the tensor's bytes from that byte on."""
        with self.path.open("rb", buffering=0) as file:
            try:
                read_at(file.fileno(), out, self.piece.start + first_byte)
            except EOFError as exc:
                raise LocalFileChanged(f"{self.path} became shorter while it was pushed") from exc


@dataclass(frozen=True)
class Choice:
    """How a tensor will be coded. ratio: expected bytes over raw bytes, from a sample."""

    tensor: LocalTensor
    base: BaseTensor | None
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
    """The smallest of: alone, and a delta against what each base offers; by three samples."""
    spec = tensor.spec
    ranges = list(sample_runs(spec.count))
    sample = bytearray(sum(count for _, count in ranges) * spec.dtype.itemsize)
    _read_runs(tensor, ranges, spec.dtype, sample)
    best = Choice(tensor, None, min(1.0, _share(spec.dtype, sample, None)))
    if tensor.size < _MIN_DELTA_BYTES:
        return best
    limit = best.ratio - _MUST_SAVE
    for base_set in bases:
        base = base_set.match(tensor.piece)
        if base is None or base.tensor == tensor.tensor:
            continue
        if not sources.is_verified(base.tensor):
            continue  # its bytes are not what the index says: the hub would refuse the frames
        aligned = bytearray(len(sample))
        position = 0
        for start, count in ranges:
            size = count * spec.dtype.itemsize
            part = memoryview(aligned)[position : position + size]
            assemble(base.plan(spec.dtype, start, count), spec.dtype, 0, count, sources.read, part)
            position += size
        ratio = _share(spec.dtype, sample, aligned)
        if ratio < limit:
            best, limit = Choice(tensor, base, ratio), ratio
    return best


def encode_all(choices: Sequence[Choice], sources: Sources) -> Generator[EncodedFrame, None, None]:
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
                    task = pool.submit(_encode, choice, spec, part, sources, threads)
                    waiting.append((choice, size, task))
                    in_flight += size
            for done, done_size, task in waiting:
                yield EncodedFrame(done, task.result(), done_size)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _encode(
    choice: Choice, spec: TensorSpec, part: FrameRange, sources: Sources, threads: int
) -> bytes:
    source = bytearray(part.count * spec.dtype.itemsize)
    choice.tensor.read(part.start * spec.dtype.itemsize, memoryview(source))
    if choice.base is not None:
        plan = choice.base.plan(spec.dtype, part.start, part.count)
        if plan.base_ids():
            base = bytearray(len(source))
            assemble(plan, spec.dtype, 0, part.count, sources.read, memoryview(base))
            frame = encode_frame(spec, part, source, base, plan, "delta", threads)
            raw = raw_frame_length(spec.dtype, part.rows, part.columns)
            if parse_header(frame).base is None or len(frame) < raw * (1 - _MUST_SAVE):
                return frame
    return encode_frame(spec, part, source, threads=threads)


def _read_runs(
    tensor: LocalTensor, ranges: Sequence[tuple[int, int]], dtype: DType, out: bytearray
) -> None:
    position = 0
    for start, count in ranges:
        size = count * dtype.itemsize
        tensor.read(start * dtype.itemsize, memoryview(out)[position : position + size])
        position += size


def _share(dtype: DType, sample: bytearray, base: bytearray | None) -> float:
    """Coded bytes over raw bytes of a sample, in a frame that nobody keeps."""
    count = len(sample) // dtype.itemsize
    spec = TensorSpec(b"\x01" * 32, dtype, 1, count)
    part = FrameRange(0, count, 1, count)
    if base is None:
        return len(encode_frame(spec, part, sample)) / len(sample)
    plan = BasePlan((BaseSegment(b"\x02" * 32, dtype, 0, count),), is_cast=False)
    return len(encode_frame(spec, part, sample, base, plan, "fm_delta")) / len(sample)
