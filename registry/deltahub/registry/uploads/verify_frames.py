"""Decodes frames that a client encoded, to verify them or to encode them again."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from blake3 import blake3

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames import (
    BasePlan,
    FrameHeader,
    FrameRange,
    FrameView,
    TensorSpec,
    assemble,
    encode_frame,
    open_frame,
)
from deltahub.codecs.frames.base_choice import average_cost
from deltahub.codecs.ids import ZERO_ID
from deltahub.registry import cancellation
from deltahub.registry.errors import InvalidFrame
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.packs.encoder_generation import generation_of, standalone_generation
from deltahub.registry.packs.tensor_reader import RANGE_BYTES, TensorReader
from deltahub.registry.packs.writer import PackSpool
from deltahub.registry.registry import Registry
from deltahub.registry.uploads.client_pack_index import UploadedFrame

# A frame, its base and its new encodings take up to 64 MiB each in memory. So each process works on
# one frame at a time.
_ONE_FRAME_AT_A_TIME = threading.Lock()


class FrameVerifier:
    """Verifies uploaded frames and adds them to a spool.

    base_sizes: content id -> size in bytes of every allowed base. again: tensors that the hub
    encodes anew -> another base of the same size that may be used, or None. is_private: the
    client's other frames are stored as they are; otherwise the hub encodes all tensors.
    """

    def __init__(
        self,
        reg: Registry,
        reader: TensorReader,
        spool: PackSpool,
        domain_id: int,
        base_sizes: Mapping[bytes, int],
        again: Mapping[bytes, bytes | None],
        *,
        is_private: bool,
    ) -> None:
        self._reg = reg
        self._read_base = reader.base_reader(domain_id)
        self._spool = spool
        self._base_sizes = base_sizes
        self._again = dict(again)
        self._is_private = is_private
        # (id of an upload, its reader): the next frame often begins in the block where one ends.
        self._landing: tuple[str, LandingReader] | None = None
        self._threads = reg.settings.codec_threads
        self._effort = reg.settings.effort
        self._max_depth = reg.settings.max_depth

    def take(self, tensor: bytes, frames: Sequence[UploadedFrame]) -> None:
        """Add all frames of a tensor; InvalidFrame unless they decode to this content id."""
        digest = blake3()
        for frame in frames:
            with _ONE_FRAME_AT_A_TIME:
                cancellation.check()  # also because another frame may have taken seconds
                try:
                    self._take_frame(frame, digest)
                except CodecError as exc:
                    raise InvalidFrame(f"a frame of tensor {tensor.hex()}: {exc}") from exc
        if digest.digest() != tensor:
            raise InvalidFrame(f"the frames of tensor {tensor.hex()} decode to another tensor")

    def _take_frame(self, frame: UploadedFrame, digest: blake3) -> None:
        stored = bytearray(frame.length)
        self._upload(frame.landing_id).read_into(frame.offset, memoryview(stored))
        view, body = open_frame(stored)
        self._check_segments(view)
        if frame.tensor not in self._again and self._is_private:
            self._hash(view, body, digest)
            self._spool.add(stored)
            return
        header, plan = view.header, view.header.base
        base = self._base(header, plan, 0, header.size_bytes)
        out = memoryview(bytearray(header.size_bytes))
        view.decode_into(0, header.n_blocks, body, base, out, self._threads)
        digest.update(out)
        if frame.tensor in self._again:
            plan = self._other_plan(header, out)
            base = self._base(header, plan, 0, header.size_bytes)
        generation = standalone_generation() if plan is None else generation_of(self._effort)
        self._spool.add(self._encode(header, out, plan, base), generation)

    def _upload(self, landing_id: str) -> LandingReader:
        if self._landing is None or self._landing[0] != landing_id:
            self._landing = (landing_id, LandingReader(self._reg, landing_id))
        return self._landing[1]

    def _check_segments(self, view: FrameView) -> None:
        base = view.header.base
        if base is not None and base.n_inputs > 1:
            raise InvalidFrame(
                f"a frame with {base.n_inputs} inputs; send the tensor as a delta of one base"
            )
        for segment in () if base is None else base.segments:
            end = (segment.start + segment.count) * segment.dtype.itemsize
            if segment.tensor != ZERO_ID and end > self._base_sizes[segment.tensor]:
                raise InvalidFrame(f"a base ends beyond its tensor {segment.tensor.hex()}")

    def _hash(self, view: FrameView, body: memoryview, digest: blake3) -> None:
        """Decode and hash about RANGE_BYTES at a time, to save memory."""
        header, position = view.header, 0
        while position < header.size_bytes:
            cancellation.check()
            begin, stop = view.blocks_of_bytes(
                position, min(position + RANGE_BYTES, header.size_bytes)
            )
            low, high = view.block_span(begin)[0], view.block_span(stop - 1)[1]
            base = self._base(header, header.base, low, high)
            first, end = view.stored_span(begin, stop)
            out = memoryview(bytearray(high - low))
            stored = body[first - header.prefix_length : end - header.prefix_length]
            view.decode_into(begin, stop, stored, base, out, self._threads)
            digest.update(out)
            position = high

    def _other_plan(self, header: FrameHeader, out: memoryview) -> BasePlan | None:
        """The plan against the tensor's other base, or None where it should have no base.

        The first frame decides for the tensor: whether the next steps of the chain cost less on the
        average if it begins without a base.
        """
        plan = _against(header.base, self._again[header.tensor])
        if plan is None or header.start > 0:
            return plan
        base = self._base(header, plan, 0, header.size_bytes)
        delta = len(self._encode(header, out, plan, base))
        alone = len(self._encode(header, out, None, None))
        step, room = header.frame_length, self._max_depth
        if average_cost(alone, step, room) <= average_cost(delta, step, room - 1):
            self._again[header.tensor] = None
            return None
        return plan

    def _encode(
        self,
        header: FrameHeader,
        out: memoryview,
        plan: BasePlan | None,
        base: bytearray | None,
    ) -> bytes:
        """A frame of these elements that the hub encodes."""
        spec = TensorSpec(header.tensor, header.dtype, 1, header.tensor_count)
        part = FrameRange(header.start, header.count, header.rows, header.columns)
        if plan is None:
            return encode_frame(spec, part, out, threads=self._threads, effort=self._effort)
        return encode_frame(spec, part, out, base, plan, "delta", self._threads, self._effort)

    def _base(
        self, header: FrameHeader, plan: BasePlan | None, low: int, high: int
    ) -> bytearray | None:
        """The base by this plan, aligned with decoded bytes [low, high) of the frame."""
        if plan is None:
            return None
        base = bytearray(high - low)
        first, count = low // header.dtype.itemsize, (high - low) // header.dtype.itemsize
        assemble(plan, header.dtype, first, count, self._read_base, memoryview(base))
        return base


def _against(plan: BasePlan | None, base: bytes | None) -> BasePlan | None:
    """The plan with another tensor in the place of its only base; None for no base."""
    if plan is None or base is None:
        return None
    segments = tuple(
        segment if segment.tensor == ZERO_ID else replace(segment, tensor=base)
        for segment in plan.segments
    )
    return replace(plan, segments=segments)
