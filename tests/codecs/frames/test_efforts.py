"""More effort makes no larger frame of a fine-tune."""

import random
from collections.abc import Callable

import pytest
import torch

from deltahub.codecs import DType, InvalidInput, TensorSpec, encode_frame, tensor_id
from deltahub.codecs.frames.choose_codec import sampled_ranges
from deltahub.codecs.frames.encode import split_frames
from deltahub.codecs.protocol import Effort
from support.codecs.frames import plan_on
from support.models import tiny_models as tiny
from support.models.tiny_lora import merged_lora

TORCH = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}


def raw(tensor: torch.Tensor, dtype: DType) -> bytes:
    words = tensor.to(TORCH[dtype]).contiguous().reshape(-1)
    return words.view(torch.uint8).numpy().tobytes()


def pair(of: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(base, fine-tune)."""
    if of == "a merged adapter":
        return merged_lora()
    name, rate = of.split(" at ")
    return tiny.base()[name], tiny.finetune(float(rate))[name]


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "of", ["a merged adapter", "head.weight at 1e-2", "up.weight at 1e-4", "up.weight at 1e-2"]
)
def test_more_effort_makes_no_larger_frame(of: str, dtype: DType) -> None:
    base, tuned = pair(of)
    words, near = raw(tuned, dtype), raw(base, dtype)
    spec = TensorSpec(tensor_id(words), dtype, *tuned.shape)
    (part,) = split_frames(spec)
    fast, default, at_max = (
        len(encode_frame(spec, part, words, near, plan_on(near, dtype), effort=effort))
        for effort in (Effort.FAST, Effort.DEFAULT, Effort.MAX)
    )
    assert default <= fast
    assert at_max <= 1.001 * default  # a table in the prelude may take one byte more


def sparse(dtype: DType) -> tuple[bytes, bytes]:
    """(a fine-tune, its base): equal except for two columns and one row."""
    base = 0.02 * torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    tuned = base.clone()
    tuned[:, 192], tuned[:, 203], tuned[430] = 0.0, 1e-45, -torch.inf
    return raw(tuned, dtype), raw(base, dtype)


def mostly_unchanged(dtype: DType) -> tuple[bytes, bytes]:
    """(a fine-tune, its base): one row is new; the last third has one value, as of unused rows."""
    base = 0.02 * torch.randn(600, 512, generator=torch.Generator().manual_seed(0))
    base[400:] = 1 / 3
    tuned = base.clone()
    tuned[7] = torch.randn(512, generator=torch.Generator().manual_seed(1))
    return raw(tuned, dtype), raw(base, dtype)


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("of", [sparse, mostly_unchanged])
def test_a_few_rows_and_columns_that_are_new_cost_themselves(
    of: Callable[[DType], tuple[bytes, bytes]], dtype: DType
) -> None:
    words, near = of(dtype)
    spec = TensorSpec(tensor_id(words), dtype, len(words) // (512 * dtype.itemsize), 512)
    (part,) = split_frames(spec)
    for effort in Effort:
        frame = encode_frame(spec, part, words, near, plan_on(near, dtype), effort=effort)
        assert len(frame) < 0.02 * len(words)


def test_a_word_in_a_thousand_that_moved_takes_hardly_more_at_fast() -> None:
    generator = torch.Generator().manual_seed(0)
    base = (0.02 * torch.randn(1024, 1024, generator=generator)).to(torch.bfloat16)
    moved = torch.rand(base.shape, generator=generator) < 1e-3
    tuned = torch.where(moved, base.view(torch.int16) + 1, base.view(torch.int16))
    words, near = raw(tuned.view(torch.bfloat16), DType.BF16), raw(base, DType.BF16)
    spec = TensorSpec(tensor_id(words), DType.BF16, *base.shape)
    (part,) = split_frames(spec)
    fast, default = (
        len(encode_frame(spec, part, words, near, plan_on(near, DType.BF16), effort=effort))
        for effort in (Effort.FAST, Effort.DEFAULT)
    )
    assert fast < 1.1 * default


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("value", [1 / 3, 0.9999, float("nan")])
def test_one_value_everywhere_needs_no_base(value: float, dtype: DType) -> None:
    near = raw(0.02 * torch.randn(512, 512, generator=torch.Generator().manual_seed(0)), dtype)
    words = raw(torch.full((512, 512), value), dtype)
    spec = TensorSpec(tensor_id(words), dtype, 512, 512)
    (part,) = split_frames(spec)
    for effort in Effort:
        frame = encode_frame(spec, part, words, near, plan_on(near, dtype), effort=effort)
        assert len(frame) < 400


def test_words_near_zero_do_not_tell_how_far_their_rows_move() -> None:
    # A step moves such a word by many exponents, each as many units as between larger words.
    # With these words in the mean of a row, the frame took 25.7 %.
    generator = torch.Generator().manual_seed(0)
    base = 0.02 * torch.randn(512, 512, generator=generator)
    steps = torch.randn(base.shape, generator=generator) * 2e-4
    steps *= torch.exp(torch.randn(512, 1, generator=generator))
    words, near = raw(base + steps, DType.BF16), raw(base, DType.BF16)
    spec = TensorSpec(tensor_id(words), DType.BF16, 512, 512)
    (part,) = split_frames(spec)
    frame = encode_frame(spec, part, words, near, plan_on(near, DType.BF16))
    assert len(frame) < 0.253 * len(words)


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
def test_a_base_that_was_chosen_is_tried_whatever_a_sample_says(dtype: DType) -> None:
    # The low-rank product is larger than the weights, so other estimates see no common bits.
    generator = torch.Generator().manual_seed(0)
    base = 0.02 * torch.randn(512, 512, generator=generator)
    left, right = (torch.randn(512, 8, generator=generator) for _ in range(2))
    words, near = raw(base + 0.02 * left @ right.T, dtype), raw(base, dtype)
    spec = TensorSpec(tensor_id(words), dtype, 512, 512)
    (part,) = split_frames(spec)
    plan = plan_on(near, dtype)
    frame, delta = (
        encode_frame(spec, part, words, near, plan, codec) for codec in ("delta", "fm_delta")
    )
    assert len(frame) <= len(delta) < 0.6 * len(words)


def test_new_bytes_where_samples_lie_do_not_hide_that_the_rest_is_the_base() -> None:
    near = bytearray(random.Random(0).randbytes(1 << 20))
    words = bytearray(near)
    for start, count in sampled_ranges(len(words)):
        words[start : start + count] = random.Random(start).randbytes(count)
    spec = TensorSpec(tensor_id(words), DType.U8, 1024, 1024)
    (part,) = split_frames(spec)
    plan = plan_on(bytes(near), DType.U8)
    assert len(encode_frame(spec, part, words, near, plan, "delta")) < 0.2 * len(words)
    with pytest.raises(InvalidInput, match="their plan or both are missing"):
        encode_frame(spec, part, words, codec="delta")
