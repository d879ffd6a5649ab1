"""Ways to send a step: ours, and those of today's systems for reinforcement learning.

Each takes the bytes of a tensor in two steps and gives back the bytes to send; `decode` undoes it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    FrameView,
    TensorSpec,
    decode_frame,
    encode_frame,
    split_frames,
    tensor_spec,
)
from deltahub.codecs.frames.base_plan import slice_plan
from deltahub.codecs.protocol import Effort

Words = np.ndarray  # uint16, shape (n,): BF16 bit patterns
Encode = Callable[[Words, Words, tuple[int, ...]], list[bytes]]
Decode = Callable[[list[bytes], Words], Words]

_FRAME_BYTES = 16 << 20  # as a push of a step


@dataclass(frozen=True)
class Contender:
    name: str
    encode: Encode
    decode: Decode


def _spec(shape: tuple[int, ...]) -> TensorSpec:
    return tensor_spec(b"\1" * 32, "BF16", shape)


def _encode_frames(old: Words, new: Words, shape: tuple[int, ...]) -> list[bytes]:
    spec = _spec(shape)
    whole = BasePlan((BaseSegment(b"\2" * 32, spec.dtype, 0, spec.count),), False)
    return [
        encode_frame(
            spec,
            part,
            new[part.start : part.start + part.count],
            old[part.start : part.start + part.count],
            slice_plan(whole, spec.dtype, part.start, part.count),
            "delta",
            1,
            Effort.FAST,
        )
        for part in split_frames(spec, _FRAME_BYTES)
    ]


def _decode_frames(frames: list[bytes], old: Words) -> Words:
    out: list[bytes | bytearray] = []
    at = 0
    for frame in frames:
        size = len(old) - at
        part = decode_frame_of(frame, old[at : at + size])
        out.append(part)
        at += len(part) // 2
    return np.frombuffer(b"".join(out), np.uint16)


def decode_frame_of(frame: bytes, old: Words) -> bytearray:
    """The bytes of one frame. old: the base's words from the frame's first one on."""
    header = FrameView.parse(frame).header
    base = None if header.base is None else old[: header.count]
    return decode_frame(frame, base)


def _encode_xor(old: Words, new: Words, shape: tuple[int, ...]) -> list[bytes]:
    return [zstandard.ZstdCompressor(level=1).compress(np.bitwise_xor(old, new).data)]


def _decode_xor(sent: list[bytes], old: Words) -> Words:
    plain = zstandard.ZstdDecompressor().decompress(sent[0])
    return np.bitwise_xor(old, np.frombuffer(plain, np.uint16))


def _encode_positions(old: Words, new: Words, shape: tuple[int, ...]) -> list[bytes]:
    (places,) = np.nonzero(old != new)
    body = places.astype("<u4").tobytes() + new[places].tobytes()
    return [zstandard.ZstdCompressor(level=3).compress(body)]


def _decode_positions(sent: list[bytes], old: Words) -> Words:
    plain = zstandard.ZstdDecompressor().decompress(sent[0])
    count = len(plain) // 6
    result = old.copy()
    result[np.frombuffer(plain, "<u4", count)] = np.frombuffer(plain, np.uint16, count, 4 * count)
    return result


OURS = Contender("DeltaHub's frames", _encode_frames, _decode_frames)
CONTENDERS = (
    OURS,
    Contender("XOR, zstd-1", _encode_xor, _decode_xor),
    Contender("positions and values, zstd-3", _encode_positions, _decode_positions),
)
