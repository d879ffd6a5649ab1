"""A few unpredictable rows, columns or numbers cost only their own bytes: the product stays."""

from collections.abc import Callable

import pytest
import torch

from deltahub.codecs import DType, Geometry
from deltahub.codecs.protocol import Effort
from support.codecs.deltas import decode, encode, stored_bytes
from support.models.tiny_lora import merged_lora

TORCH = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}


def zero(tensor: torch.Tensor, where: tuple[slice | int, ...]) -> None:
    tensor[where] = 0


def number(value: float) -> Callable[[torch.Tensor], None]:
    def put(tensor: torch.Tensor) -> None:
        tensor[5, 5] = value

    return put


def fresh_rows(tensor: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(7)
    some = torch.randn(4, tensor.shape[1], generator=generator) * tensor.float().std()
    tensor[20:24] = some.to(tensor.dtype)


# By name: a change of the fine-tune, and the number of words that it makes unpredictable.
ODD: dict[str, tuple[Callable[[torch.Tensor], None], int]] = {
    "a NaN": (number(float("nan")), 384),
    "an infinity": (number(float("-inf")), 384),
    "a far-off number": (number(6e4), 384),
    "a row of zeros": (lambda tensor: zero(tensor, (7,)), 384),
    "a column of zeros": (lambda tensor: zero(tensor, (slice(None), 9)), 192),
    "rows initialized again": (fresh_rows, 4 * 384),
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def size(dtype: DType, words: bytes, base: bytes, shape: torch.Size, effort: Effort) -> int:
    rows, columns = shape
    geometry = Geometry(dtype, rows, columns, rows, 1)
    body = encode(geometry, words, base, effort=effort)
    assert decode(geometry, body, base) == words
    return stored_bytes(body)


@pytest.mark.parametrize("dtype", list(TORCH), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("effort", [Effort.DEFAULT, Effort.MAX], ids=lambda effort: effort.name)
@pytest.mark.parametrize("odd", list(ODD))
def test_what_nothing_predicts_costs_itself(odd: str, effort: Effort, dtype: DType) -> None:
    base, tuned = (tensor.to(TORCH[dtype]) for tensor in merged_lora())
    change, n_words = ODD[odd]
    changed = tuned.clone()
    change(changed)
    without = size(dtype, raw(tuned), raw(base), tuned.shape, effort)
    most = 1.15 * without + 1.6 * n_words * dtype.itemsize + 600
    assert size(dtype, raw(changed), raw(base), tuned.shape, effort) < most
