"""DeltaHub's codecs as the benchmarks call them: the one place that knows their API."""

import io
from dataclasses import dataclass

from benchmarks.codecs.tensors import PairOfFiles, Tensor
from benchmarks.rivals.rival import Words
from deltahub.codecs import (
    ZERO_ID,
    BasePlan,
    BaseSegment,
    PackWriter,
    TensorSpec,
    encode_frame,
    make_recipe,
    open_frame,
    parse_header,
    split_frames,
    tensor_id,
    tensor_spec,
)
from deltahub.codecs.protocol import Effort

PACKAGES = ("deltahub", "numpy", "blake3", "xxhash", "zstandard")
_SOME_ID, _BASE_ID = b"\1" * 32, b"\2" * 32


@dataclass(frozen=True)
class Stored:
    """worst_excess: bytes by which a tensor exceeds its standalone form and a header; 0: none."""

    size_bytes: int
    worst_excess: int = 0


@dataclass(frozen=True)
class Ours:
    """The codec that a frame's sample chooses (`auto`), at one effort.

    The time has the checksum of every block; BLAKE3 of tensors is the hub's, not the codec's.
    """

    effort: Effort = Effort.DEFAULT
    uses_base: bool = True

    @property
    def name(self) -> str:
        alone = "" if self.uses_base else ", alone"
        return f"deltahub {self.effort.name.lower()}{alone}"

    @property
    def about(self) -> str:
        what = "against the base" if self.uses_base else "without a base"
        return (
            f"frames of the codec that a sample chooses, effort {self.effort.name.lower()}, {what}"
        )

    def encode(
        self, tensor: Tensor, threads: int = 1, ids: tuple[bytes, bytes] = (_SOME_ID, _BASE_ID)
    ) -> list[bytes]:
        """The tensor's frames. ids: of the tensor and of its base."""
        spec = tensor_spec(ids[0], tensor.dtype, tensor.shape)
        source, base = memoryview(tensor.words).cast("B"), memoryview(tensor.base).cast("B")
        item = spec.dtype.itemsize
        frames: list[bytes] = []
        for part in split_frames(spec):
            span = slice(part.start * item, (part.start + part.count) * item)
            plan = _plan(spec, part.start, part.count, tensor.n_base, ids[1])
            near = base[span]
            if plan is None or not self.uses_base:
                plan, near = None, None
            frames.append(
                encode_frame(
                    spec, part, source[span], near, plan, threads=threads, effort=self.effort
                )
            )
        return frames

    def decode(self, frames: list[bytes], base: Words, out: Words, threads: int = 1) -> None:
        near, target = memoryview(base).cast("B"), memoryview(out).cast("B")
        for frame in frames:
            view, body = open_frame(frame)
            header = view.header
            begin = header.start_byte
            end = begin + header.size_bytes
            aligned = None if header.base is None else near[begin:end]
            view.decode_into(0, header.n_blocks, body, aligned, target[begin:end], threads)

    def stored(self, pair: PairOfFiles) -> Stored:
        """What a hub keeps of the fine-tune: packs and a recipe. Round trip held.

        A tensor that equals the base's is only named in the recipe.
        """
        packs = Packs()
        alone = Ours(self.effort, uses_base=False)
        excess: list[int] = [0]
        for tensor in pair.tensors:
            if tensor.is_unchanged and self.uses_base:
                continue
            ids = tensor_id(tensor.words.tobytes()), tensor_id(tensor.base.tobytes())
            frames = self.encode(tensor, ids=ids)
            verify(self, tensor, frames)
            if self.uses_base:
                headers = sum(parse_header(frame).header_length for frame in frames)
                excess.append(_total(frames) - _total(alone.encode(tensor)) - headers)
            for frame in frames:
                packs.add(frame)

        def read_at(offset: int, length: int) -> bytes:
            return pair.fine_tune.data[offset : offset + length]

        plan = pair.fine_tune.plan
        pieces = [piece for piece in plan.pieces if not piece.is_literal]
        ids_of_all = [tensor_id(pair.fine_tune.bytes_of(piece)) for piece in pieces]
        recipe = make_recipe(plan, bytes(32), ids_of_all, read_at).to_bytes()
        return Stored(packs.finish() + len(recipe), max(excess))


class Packs:
    """As many packs as the frames fill."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._pack = PackWriter(self._sink)
        self._size_bytes = 0

    def add(self, frame: bytes) -> None:
        if not self._pack.fits(len(frame)):
            self._size_bytes = self.finish()
            self._sink = io.BytesIO()
            self._pack = PackWriter(self._sink)
        self._pack.add(frame)

    def finish(self) -> int:
        """The bytes of all packs."""
        if self._pack.n_frames == 0:
            return self._size_bytes
        self._pack.finish()
        return self._size_bytes + len(self._sink.getvalue())


class NotLossless(Exception):
    """A codec did not give back what it was given."""


def _total(frames: list[bytes]) -> int:
    return sum(len(frame) for frame in frames)


def verify(codec: Ours, tensor: Tensor, frames: list[bytes]) -> None:
    out = tensor.words.copy()
    out.fill(1)
    codec.decode(frames, tensor.base, out)
    if out.tobytes() != tensor.words.tobytes():
        raise NotLossless(f"{codec.name} changed {tensor.name}")


def _plan(spec: TensorSpec, start: int, count: int, n_base: int, base: bytes) -> BasePlan | None:
    """The base's elements, then zeros; None where the base has none for this range."""
    known = max(0, min(start + count, n_base) - start)
    if known == 0:
        return None
    segments = [BaseSegment(base, spec.dtype, start, known)]
    if known < count:
        segments.append(BaseSegment(ZERO_ID, spec.dtype, 0, count - known))
    return BasePlan(tuple(segments), False)


OURS = tuple(Ours(effort) for effort in Effort)
STANDALONE = Ours(Effort.DEFAULT, uses_base=False)
JUDGED = Ours(Effort.DEFAULT)  # whose sizes the figures are held against
