"""Trained tensors: reference and all kernels agree on their frames; deltas are never larger."""

import numpy as np
import pytest
import torch

from deltahub.codecs import (
    BY_ID,
    CorruptFrame,
    DType,
    FrameView,
    WrongBase,
    decode_frame,
    encode_frame,
    tensor_id,
)
from deltahub.codecs.blocks import GUARD_BYTES
from deltahub.codecs.frames import FrameRange, TensorSpec, split_frames, tensor_spec
from deltahub.codecs.frames.choose_codec import sampled_ranges
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference.fm_delta import BlockShape, parse_prelude
from deltahub.codecs.reference.words import Words
from support.codecs.frames import plan_on
from support.codecs.kernels import NAMES, delta_outcome, float_outcome, running
from support.models import tiny_models as tiny
from support.models.tiny_lora import merged_lora

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8_E4M3: torch.float8_e4m3fn,
    DType.F8_E5M2: torch.float8_e5m2,
}
every_float = pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
low_rank_dtype = pytest.mark.parametrize(
    "dtype", [DType.BF16, DType.F16, DType.F32], ids=lambda dtype: dtype.name
)


def raw(tensor: torch.Tensor, dtype: DType) -> bytes:
    words = tensor.to(TORCH[dtype]).contiguous().reshape(-1)
    return words.view(torch.uint8).numpy().tobytes()


def spec_of(tensor: torch.Tensor, dtype: DType) -> tuple[TensorSpec, FrameRange]:
    spec = tensor_spec(tensor_id(raw(tensor, dtype)), dtype.name, list(tensor.shape))
    (part,) = split_frames(spec)
    return spec, part


def frame_of(
    dtype: DType,
    tensor: torch.Tensor,
    base: torch.Tensor | None = None,
    codec: str = "auto",
    effort: Effort = Effort.DEFAULT,
) -> bytes:
    """The frame, equal from all kernels."""
    spec, part = spec_of(tensor, dtype)
    near = None if base is None else raw(base, dtype)
    plan = None if near is None else plan_on(near, dtype)
    frames = set()
    for name in NAMES:
        with running(name):
            frames.add(encode_frame(spec, part, raw(tensor, dtype), near, plan, codec, 1, effort))
    (frame,) = frames
    return frame


def only_stream(view: FrameView, frame: bytes) -> bytes:
    assert view.header.n_blocks == 1
    return frame[view.header.prefix_length + GUARD_BYTES :]


@pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)
@pytest.mark.parametrize("kind", ["a fine-tune", "a merged adapter"])
@low_rank_dtype
def test_the_reference_reads_what_every_effort_makes_of_trained_weights(
    dtype: DType, kind: str, effort: Effort
) -> None:
    if kind == "a fine-tune":
        tensor, base = tiny.finetune(1e-3)["down.weight"], tiny.base()["down.weight"]
    else:
        tensor, base = (each[:48] for each in merged_lora())
    frame = frame_of(dtype, tensor, base, "fm_delta", effort)
    view = FrameView.parse(frame)
    header, shape = view.header, BlockShape(*tensor.shape)
    rectangle = header.rows, header.columns
    assert header.effort == effort
    version = header.codec_version
    model = parse_prelude(Words.of(dtype), *rectangle, view.prelude, version)
    assert model.low_rank is None or effort > Effort.FAST
    stream = only_stream(view, frame)
    near, expected = raw(base, dtype), raw(tensor, dtype)
    decoded = delta_outcome(dtype, rectangle, view.prelude, stream, near, shape, version)
    assert decoded == expected


@every_float
def test_the_reference_reads_what_kernels_make_of_trained_weights_alone(dtype: DType) -> None:
    tensor = tiny.base()["down.weight"]
    frame = frame_of(dtype, tensor, codec="neuzip_lossless")
    view, expected = FrameView.parse(frame), raw(tensor, dtype)
    stream = only_stream(view, frame)
    assert float_outcome(dtype, view.prelude, stream, tensor.numel()) == expected


@low_rank_dtype
def test_an_unrelated_model_is_no_base(dtype: DType) -> None:
    for name, tensor in tiny.base().items():
        standalone = frame_of(dtype, tensor)
        assert frame_of(dtype, tensor, tiny.base(seed=1)[name]) == standalone


@low_rank_dtype
@pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)
def test_a_tensor_that_is_its_base_takes_a_header_and_no_blocks(
    dtype: DType, effort: Effort
) -> None:
    matrices = [tensor for tensor in tiny.base().values() if tensor.dim() == 2]
    assert matrices
    for tensor in matrices:
        near = raw(tensor, dtype)
        frame = frame_of(dtype, tensor, tensor, effort=effort)
        header = FrameView.parse(frame).header
        assert header.codec == "fm_delta"
        assert (header.prelude_length, header.body_length) == (0, 0)
        assert decode_frame(frame, near) == near


@low_rank_dtype
@pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)
def test_a_wrong_base_gives_an_error_or_the_right_bytes(dtype: DType, effort: Effort) -> None:
    """Only the checksums of decoded blocks show that a base is wrong."""
    by_checksum = 0
    for name, tensor in tiny.finetune(1e-3).items():
        near, other = raw(tiny.base()[name], dtype), raw(tiny.base(seed=1)[name], dtype)
        expected, frame = (
            raw(tensor, dtype),
            frame_of(dtype, tensor, tiny.base()[name], "fm_delta", effort),
        )
        if FrameView.parse(frame).header.base is None:
            assert tensor.dim() == 1  # a bias, too short for a delta to pay
            continue
        # With the last bit of one word flipped, contexts are the same. Then all symbols are read as
        # they were written, and only the checksum fails.
        moved = np.frombuffer(near, f"<u{dtype.itemsize}").copy()
        moved[len(moved) // 2] ^= 1
        for kernels in NAMES:
            with running(kernels):
                assert decode_frame(frame, near) == expected
                with pytest.raises(CorruptFrame, match=r"^block 0 "):
                    decode_frame(frame, other)
                with pytest.raises(WrongBase):
                    decode_frame(frame, near[dtype.itemsize :])
                try:
                    assert decode_frame(frame, moved.tobytes()) == expected
                except CorruptFrame as exc:
                    by_checksum += "not its base" in str(exc)
    assert by_checksum >= len(NAMES)


@low_rank_dtype
@pytest.mark.parametrize("learning_rate", [1e-5, 1e-3, 1e-2])
def test_no_delta_is_larger_than_the_tensor_alone(dtype: DType, learning_rate: float) -> None:
    for name, tensor in tiny.finetune(learning_rate).items():
        delta, standalone = frame_of(dtype, tensor, tiny.base()[name]), frame_of(dtype, tensor)
        assert len(delta) <= len(standalone)
        near = raw(tiny.base()[name], dtype)
        has_base = BY_ID[FrameView.parse(delta).header.codec].n_inputs > 0
        assert decode_frame(delta, near if has_base else None) == raw(tensor, dtype)


@low_rank_dtype
def test_a_sample_that_is_nearer_its_base_than_the_rest_costs_nothing(dtype: DType) -> None:
    """As if some rows were fine-tuned and the rest trained from the start."""
    base = torch.cat([tiny.base(seed)["up.weight"] for seed in (0, 1, 2, 3)])
    tensor = torch.cat([tiny.base(seed)["up.weight"] for seed in (3, 2, 1, 0)]).flatten()
    for start, count in sampled_ranges(tensor.numel()):
        tensor[start : start + count] = base.flatten()[start : start + count] * 1.001
    tensor = tensor.view(base.shape)
    standalone = frame_of(dtype, tensor)
    assert FrameView.parse(standalone).header.codec == "neuzip_lossless"
    assert len(frame_of(dtype, tensor, base)) <= len(standalone)
