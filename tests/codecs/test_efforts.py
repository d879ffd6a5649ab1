"""More effort makes no larger frame of a fine-tune."""

import pytest
import torch

from deltahub.codecs import DType, TensorSpec, encode_frame, tensor_id
from deltahub.codecs.frame_encode import split_frames
from deltahub.codecs.protocol import Effort
from support import tiny_models as tiny
from support.frames import plan_on
from support.tiny_lora import merged_lora

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
    fast, default, most = (
        len(encode_frame(spec, part, words, near, plan_on(near, dtype), effort=effort))
        for effort in (Effort.FAST, Effort.DEFAULT, Effort.MAX)
    )
    assert default <= fast
    assert most <= 1.001 * default  # a prelude's table may take another byte
