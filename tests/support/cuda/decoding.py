"""Decodes whole frames as a GPU would, on the emulator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deltahub.codecs import Buffer, FrameView, open_frame
from deltahub.codecs.cuda.frames import GpuFrames
from support.codecs.coded_frames import CodedFrame
from support.codecs.deltas import block_table
from support.cuda.kernels import EmulatedDevice

Array = npt.NDArray[Any]
Opened = tuple[FrameView, Buffer]


def array_of(data: Buffer) -> Array:
    return np.frombuffer(bytearray(data), np.uint8)


def opened(case: CodedFrame) -> Opened:
    """The frame's view and body. The frame may be longer than its bytes stored raw."""
    body = case.body
    rows = zip(body.blocks.lengths, body.blocks.modes, body.checksums, strict=True)
    table = block_table(case.geometry, rows, has_base=case.base is not None)
    view = FrameView(case.header, body.prelude, table)
    return view, b"".join(stored for _, stored in body.blocks)


def decode_opened(
    device: EmulatedDevice, frames: Sequence[Opened], bases: Sequence[Buffer | None]
) -> list[bytes]:
    """The decoded bytes of frames, all by one call. Every error of the decoder."""
    decoder = GpuFrames(frames, device)
    outs = [np.full(view.header.size_bytes, 0xA5, np.uint8) for view, _ in frames]
    decoder.decode_into(outs, [None if base is None else array_of(base) for base in bases])
    decoder.check()
    return [out.tobytes() for out in outs]


def decode_on(device: EmulatedDevice, frame: Buffer, base: Buffer | None = None) -> bytes:
    """A frame's decoded bytes. Every error of the decoder."""
    return decode_opened(device, [open_frame(frame)], [base])[0]
