"""New rows at a tensor's end, as of an extended vocabulary, do not make other rows larger."""

import pytest
import torch

from deltahub.codecs import DType, Geometry
from deltahub.codecs.protocol import Effort
from support.codecs.deltas import decode, encode, stored_bytes
from support.models import tiny_models as tiny
from support.models.tiny_lora import merged_lora

TORCH = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}
every_dtype = pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
every_effort = pytest.mark.parametrize("effort", list(Effort), ids=lambda effort: effort.name)


def raw(tensor: torch.Tensor, dtype: DType) -> bytes:
    words = tensor.to(TORCH[dtype]).contiguous().reshape(-1)
    return words.view(torch.uint8).numpy().tobytes()


def size(dtype: DType, tensor: torch.Tensor, base: torch.Tensor, effort: Effort) -> int:
    """Stored bytes of the delta, decoded and compared. Rows that the base lacks are zeros."""
    rows, columns = tensor.shape
    geometry = Geometry(dtype, rows, columns, rows, 1)
    source = raw(tensor, dtype)
    near = raw(base, dtype).ljust(len(source), b"\0")
    body = encode(geometry, source, near, effort=effort)
    assert decode(geometry, body, near) == source
    return stored_bytes(body)


def assert_rows_cost_themselves(
    dtype: DType, tensor: torch.Tensor, base: torch.Tensor, effort: Effort, n_new: int
) -> None:
    generator = torch.Generator().manual_seed(7)
    new = torch.randn(n_new, tensor.shape[1], generator=generator) * tensor.std()
    longer = torch.cat([tensor, new])
    before = size(dtype, tensor, base, effort)
    # Each new word is an escape: the whole word and a symbol of a rare class. 600 bytes of tables.
    most = 1.6 * new.numel() * dtype.itemsize + 600
    assert size(dtype, longer, base, effort) < 1.01 * before + most


@every_dtype
@every_effort
@pytest.mark.parametrize("n_new", [2, 8])
def test_of_a_fine_tune(dtype: DType, effort: Effort, n_new: int) -> None:
    base, tuned = tiny.base(), tiny.finetune(1e-4)
    for name in ("embedding.weight", "up.weight"):
        assert_rows_cost_themselves(dtype, tuned[name], base[name], effort, n_new)


@every_dtype
@pytest.mark.parametrize("effort", [Effort.DEFAULT, Effort.MAX], ids=lambda effort: effort.name)
def test_of_a_merged_adapter(dtype: DType, effort: Effort) -> None:
    base, tuned = merged_lora()
    assert size(dtype, tuned, base, effort) < 0.7 * size(dtype, tuned, base, Effort.FAST)
    assert_rows_cost_themselves(dtype, tuned, base, effort, 9)


def test_of_a_base_of_zeros() -> None:
    tuned = tiny.finetune(1e-4)["up.weight"]
    for effort in Effort:
        assert size(DType.F32, tuned, torch.zeros_like(tuned), effort) <= 4 * tuned.numel()
