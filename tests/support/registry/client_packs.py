"""Frames, packs and recipes as a client makes them from tensors."""

import io
from collections.abc import Iterable

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.recipe import Literal, Recipe, TensorRef
from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    FrameRange,
    TensorSpec,
    encode_frame,
    split_frames,
)
from deltahub.codecs.frames.pack import PackWriter
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.uploads.client_packs import AcceptedPack, accept_pack
from support.registry.opened import sha256_of, upload


def near(data: bytes, seed: int = 0) -> bytes:
    """A copy of BF16 words, a tenth of which are changed by one step."""
    random = np.random.default_rng(seed)
    words = np.frombuffer(data, "<u2").copy()
    words += (random.random(len(words)) < 0.1).astype("<u2")
    return words.tobytes()


def weights(count: int, seed: int = 0) -> bytes:
    """BF16 words of normally distributed values."""
    values = np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def frames_of(
    data: bytes, base: bytes | None = None, *, max_bytes: int = 64 << 20, codec: str | None = None
) -> list[bytes]:
    """The frames of a BF16 tensor, as deltas of a base of the same size, or standalone."""
    spec = TensorSpec(tensor_id(data), DType.BF16, 1, len(data) // 2)
    return [_frame(spec, part, data, base, codec) for part in split_frames(spec, max_bytes)]


def _frame(
    spec: TensorSpec, part: FrameRange, data: bytes, base: bytes | None, codec: str | None
) -> bytes:
    low, high = 2 * part.start, 2 * (part.start + part.count)
    if base is None:
        return encode_frame(spec, part, data[low:high], codec=codec or "zstd")
    segment = BaseSegment(tensor_id(base), DType.BF16, part.start, part.count)
    plan = BasePlan((segment,), is_cast=False)
    return encode_frame(spec, part, data[low:high], base[low:high], plan, "fm_delta")


def pack_of(frames: Iterable[bytes]) -> bytes:
    sink = io.BytesIO()
    writer = PackWriter(sink)
    for frame in frames:
        writer.add(frame)
    writer.finish()
    return sink.getvalue()


def send_pack(reg: Registry, who: Caller, name: str, frames: Iterable[bytes]) -> AcceptedPack:
    """Upload the frames as one pack and accept it for a repository."""
    return accept_pack(reg, FileReader(reg), who, name, upload(reg, who, pack_of(frames)))


def file_of(tensors: Iterable[bytes]) -> tuple[bytes, bytes]:
    """(file, recipe) of a head of a few bytes and the tensors."""
    parts = list(tensors)
    data = b"head" + b"".join(parts)
    refs = [TensorRef(tensor_id(p), len(p), "BF16", (len(p) // 2,), None) for p in parts]
    sha256 = bytes.fromhex(sha256_of(data))
    recipe = Recipe(len(data), sha256, "opaque", (Literal(b"head"), *refs))
    return data, recipe.to_bytes()
