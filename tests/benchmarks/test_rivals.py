"""The rivals of our own making give tensors back, and code as the papers say."""

import numpy as np
import pytest
import torch

from benchmarks.rivals.all import BY_NAME
from benchmarks.rivals.mapped import add_delta, map_delta
from benchmarks.rivals.rival import Words
from support.models import tiny_models

# What needs no package beside ours; the benchmark verifies every round trip of the others.
OURS = ["FM-Delta", "TensorX", "zstd-3"]
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def words_of(tensors: tiny_models.Tensors, dtype: str) -> dict[str, Words]:
    bits, view = (torch.int32, np.uint32) if dtype == "F32" else (torch.int16, np.uint16)
    cast = tiny_models.cast(tensors, DTYPES[dtype])
    return {name: t.contiguous().view(bits).numpy().view(view).ravel() for name, t in cast.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OURS)
def test_a_rival_returns_every_tensor_of_a_trained_fine_tune(name: str, dtype: str) -> None:
    rival = BY_NAME[name]
    base = words_of(tiny_models.base(), dtype)
    for tensor, words in words_of(tiny_models.finetune(1e-4), dtype).items():
        encoded = rival.encode(words, base[tensor], dtype)
        out = np.zeros_like(words)
        rival.decode(encoded, base[tensor], dtype, out)
        assert np.array_equal(out, words), tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 1023, 1024, 1025, 40_001])
@pytest.mark.parametrize("name", ["FM-Delta", "TensorX"])
def test_words_of_any_kind_come_back(name: str, n: int, dtype: str) -> None:
    random = np.random.default_rng(n)
    kind, top = (np.uint32, 1 << 32) if dtype == "F32" else (np.uint16, 1 << 16)
    words = random.integers(0, top, n, kind)
    for base in (random.integers(0, top, n, kind), words, np.zeros(n, kind), words ^ kind(1)):
        encoded = BY_NAME[name].encode(words, base, dtype)
        out = np.zeros_like(words)
        BY_NAME[name].decode(encoded, base, dtype, out)
        assert np.array_equal(out, words)


def test_the_range_coder_is_within_two_percent_of_the_entropy_of_its_classes() -> None:
    base, words = (
        words_of(model, "BF16")["up.weight"]
        for model in (tiny_models.base(), tiny_models.finetune(1e-4))
    )
    delta = map_delta(words, base).view(np.int16).astype(np.int64)
    highest = np.frexp(np.abs(delta).astype(np.float64))[1]
    counts = np.unique(np.sign(delta) * highest, return_counts=True)[1]
    shares = counts / len(delta)
    bits = -(shares * np.log2(shares)).sum() * len(delta) + np.maximum(highest - 1, 0).sum()
    size = len(BY_NAME["FM-Delta"].encode(words, base, "BF16"))
    assert 0.98 * bits / 8 <= size <= 1.02 * bits / 8


def test_a_stream_that_ends_early_is_refused() -> None:
    base = words_of(tiny_models.base(), "BF16")["head.weight"]
    words = words_of(tiny_models.finetune(1e-4), "BF16")["head.weight"]
    encoded = BY_NAME["FM-Delta"].encode(words, base, "BF16")
    for length in (0, 7, len(encoded) // 2):
        with pytest.raises(ValueError, match="ends before"):
            BY_NAME["FM-Delta"].decode(encoded[:length], base, "BF16", np.zeros_like(words))


def test_mapped_deltas_count_floats_in_their_order() -> None:
    floats = np.array([-np.inf, -2.0, -0.0, 0.0, 1e-45, 1.5, np.inf, np.nan], np.float32)
    words = floats.view(np.uint32)
    base = np.roll(words, 1)
    deltas = map_delta(words, base)
    assert deltas[3] == 1  # +0.0 is the next after -0.0
    assert (deltas[1:].view(np.int32) > 0).all()
    out = np.empty_like(words)
    add_delta(deltas, base, out)
    assert np.array_equal(out, words)
