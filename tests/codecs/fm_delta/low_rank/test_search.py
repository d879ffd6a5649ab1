"""Thin factors predict trained fine-tunes, and are left out where they do not pay."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words, predict
from deltahub.codecs.fm_delta.low_rank.search import find_product
from deltahub.codecs.protocol import Effort
from deltahub.codecs.reference.prediction import predicted, rounded_product
from deltahub.codecs.reference.words import Words as ReferenceWords
from deltahub.codecs.reference.words import signed
from support.codecs.kernels import NAMES, every_kernel, running
from support.codecs.low_rank_statement import deltas, factor_bits, residual_bits
from support.models.tiny_models import base, cast, finetune

TORCH = {DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F32: torch.float32}
every_dtype = pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)


def words_of(tensor: torch.Tensor, dtype: DType) -> Words:
    cast_to = tensor.to(TORCH[dtype]).contiguous()
    return cast_to.view(torch.uint8).numpy().view(f"<u{dtype.itemsize}").reshape(tensor.shape)


@every_dtype
@given(data=st.data())
def test_a_prediction_is_what_the_format_says(dtype: DType, data: st.DataObject) -> None:
    floats = FLOAT_WORDS[dtype]
    rows, columns, rank = (data.draw(st.integers(1, 4)) for _ in range(3))
    i16 = st.integers(-(2**15), 2**15 - 1) | st.integers(-3, 3)
    any_word = st.integers(0, 2 * floats.sign - 1)
    words = data.draw(st.lists(any_word, min_size=rows * columns, max_size=rows * columns))
    left = data.draw(st.lists(i16, min_size=rows * rank, max_size=rows * rank))
    right = data.draw(st.lists(i16, min_size=rank * columns, max_size=rank * columns))
    floor = data.draw(st.integers(1, floats.max_exponent - 1))
    low_rank = LowRank(
        np.array(left, np.int16).reshape(rows, rank),
        np.array(right, np.int16).reshape(rank, columns),
        floor,
        data.draw(st.booleans()),
    )
    base_words = np.array(words, f"<u{dtype.itemsize}").reshape(rows, columns)
    products = low_rank.left.astype(object) @ low_rank.right.astype(object)
    reference = ReferenceWords.of(dtype)
    expected = []
    for word, step in zip(words, products.ravel().tolist(), strict=True):
        step = signed(step, 32)
        if low_rank.is_rounded:
            step = rounded_product(reference, step)
        expected.append(predicted(reference, word, step, floor))
    assert predict(dtype, base_words, low_rank).ravel().tolist() == expected


def fit_low_rank(
    dtype: DType,
    source: Words,
    near: Words,
    rows: int,
    columns: int,
    effort: Effort = Effort.DEFAULT,
) -> LowRank | None:
    found = find_product(dtype, source, near, rows, columns, effort)
    return None if found is None else found.low_rank


def coded_bits(dtype: DType, after: Words, predicted: Words) -> float:
    return residual_bits(deltas(after, predicted), np.zeros(after.shape, np.int64))


@pytest.mark.parametrize("effort", [Effort.DEFAULT, Effort.MAX], ids=lambda effort: effort.name)
def test_a_fine_tune_is_predicted_in_fewer_bits(effort: Effort) -> None:
    before, after = (words_of(t["up.weight"], DType.BF16) for t in (base(), finetune(1e-4)))
    fit = fit_low_rank(DType.BF16, after, before, *before.shape, effort)
    assert fit is not None
    factors = factor_bits(fit.left) + factor_bits(fit.right.T)
    coded = coded_bits(DType.BF16, after, predict(DType.BF16, before, fit))
    assert factors + coded < coded_bits(DType.BF16, after, before)


@cache
def merged_adapter(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A trained layer in BF16, and the F32 product of an adapter trained on another text."""
    layer = base()["up.weight"].to(torch.bfloat16)
    embedding, target = base()["embedding.weight"], finetune(1e-3)["up.weight"]
    text = torch.tensor(list(inspect.getsource(inspect)[:20_000].encode()))
    torch.manual_seed(5)  # because training of the models above, if not cached, draws numbers
    left = torch.zeros(layer.shape[0], rank, requires_grad=True)
    right = torch.randn(rank, layer.shape[1]).mul_(0.05).requires_grad_()
    optimizer = torch.optim.AdamW([left, right], lr=5e-3)
    for _ in range(60):
        at = torch.randint(0, len(text) - 4, (256,))
        hidden = embedding[torch.stack([text[at + i] for i in range(4)], dim=1)].flatten(1)
        error = hidden @ (layer.float() + left @ right - target).T
        optimizer.zero_grad()
        torch.autograd.backward(error.square().mean())
        optimizer.step()
    return layer, (left @ right).detach()


def merged_words(dtype: DType, rank: int, *, is_rounded: bool) -> tuple[Words, Words]:
    """A layer before and after a merge. is_rounded: the product is in the dtype, else in F32."""
    layer, product = (tensor.to(TORCH[dtype]) for tensor in merged_adapter(rank))
    if not is_rounded:
        return words_of(layer, dtype), words_of(layer.float() + merged_adapter(rank)[1], dtype)
    return words_of(layer, dtype), words_of(layer + product, dtype)


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize(
    ("dtype", "most", "effort"),
    [
        (DType.BF16, 1.6, Effort.MAX),
        (DType.F16, 2, Effort.DEFAULT),
        (DType.F16, 2, Effort.MAX),
    ],
)
def test_a_merged_adapter_is_found_behind_the_rounding(
    dtype: DType, most: float, is_rounded: bool, effort: Effort
) -> None:
    before, after = merged_words(dtype, 4, is_rounded=is_rounded)
    fit = fit_low_rank(dtype, after, before, *before.shape, effort)
    assert fit is not None
    assert fit.is_rounded == is_rounded
    predicted = predict(dtype, before, fit)
    assert (predicted == after).mean() > 0.93
    factors = factor_bits(fit.left) + factor_bits(fit.right.T)
    adapter = 16 * 4 * sum(before.shape)
    assert factors + coded_bits(dtype, after, predicted) < most * adapter


def test_an_adapter_whose_sums_were_rounded_more_than_its_words_is_found() -> None:
    layer = base()["up.weight"]
    random = torch.Generator().manual_seed(0)
    left = torch.randn(layer.shape[0], 8, generator=random) * layer.std()
    right = torch.randn(8, layer.shape[1], generator=random)
    product = torch.zeros_like(layer)
    for k in range(8):  # in F32, one by one
        product += torch.outer(left[:, k], right[k])
    before, after = (words_of(t, DType.F32) for t in (layer, layer + product / 4))
    fit = fit_low_rank(DType.F32, after, before, *before.shape)
    assert fit is not None
    assert fit.rank in {8, 3 * 8}  # 3 * 8: with remainders, for the digits of F32
    factors = factor_bits(fit.left) + factor_bits(fit.right.T)
    coded = factors + coded_bits(DType.F32, after, predict(DType.F32, before, fit))
    assert coded < 0.55 * coded_bits(DType.F32, after, before)


def test_components_that_rounding_hides_are_found_and_noise_is_not() -> None:
    layer, product = merged_adapter(rank=4)
    left, strengths, right = torch.linalg.svd(product.double(), full_matrices=False)
    strengths[1:4] = strengths[0] * torch.tensor([0.1, 0.01, 0.003])
    faint = ((left[:, :4] * strengths[:4]) @ right[:4]).float()
    before = words_of(layer, DType.BF16)
    after = words_of(layer.float() + faint, DType.BF16)
    fit = fit_low_rank(DType.BF16, after, before, *before.shape, Effort.MAX)
    assert fit is not None
    assert fit.rank == 4
    products = np.linalg.svd(fit.product().astype(np.float64), compute_uv=False)[:4]
    expected = strengths[:4].numpy() * products[0] / float(strengths[0])
    assert np.allclose(products, expected, rtol=0.3)


@every_kernel
@every_dtype
@pytest.mark.parametrize("effort", [Effort.DEFAULT, Effort.MAX], ids=lambda effort: effort.name)
def test_the_same_input_has_the_same_fit(kernels: str, dtype: DType, effort: Effort) -> None:
    """For every set of kernels, and in concurrent threads."""
    trained = tuple(words_of(t["up.weight"], dtype) for t in (base(), finetune(1e-4)))
    merged = merged_words(dtype, 4, is_rounded=False)
    for before, after in (trained, merged):
        with running(kernels), ThreadPoolExecutor(2) as threads:
            fits = list(
                threads.map(
                    lambda words: find_product(dtype, *words, *words[0].shape, effort),
                    [(after, before)] * 2,
                )
            )
        with running(NAMES[0]):
            fits.append(find_product(dtype, after, before, *before.shape, effort))
        one = fits[0]
        assert one is not None
        for fit in fits[1:]:
            assert fit is not None
            assert fit.low_rank.floor == one.low_rank.floor
            assert fit.low_rank.is_rounded == one.low_rank.is_rounded
            assert np.array_equal(fit.low_rank.left, one.low_rank.left)
            assert np.array_equal(fit.low_rank.right, one.low_rank.right)


@every_dtype
def test_unrelated_models_and_equal_ones_have_no_factors(dtype: DType) -> None:
    name = "up.weight"
    before, stranger = (words_of(base(seed)[name], dtype) for seed in (0, 1))
    assert fit_low_rank(dtype, stranger, before, *before.shape) is None
    assert fit_low_rank(dtype, before, before, *before.shape, Effort.MAX) is None


def test_small_tensors_and_other_dtypes_have_no_factors() -> None:
    before, after = (words_of(t["up.bias"], DType.BF16) for t in (base(), finetune(1e-4)))
    assert fit_low_rank(DType.BF16, after, before, 1, after.size) is None
    assert fit_low_rank(DType.I16, after, before, 1, after.size) is None
    narrow = [cast(t, torch.bfloat16)["head.weight"][:63] for t in (base(), finetune(1e-4))]
    before, after = (words_of(tensor, DType.BF16) for tensor in narrow)
    assert fit_low_rank(DType.BF16, after, before, *before.shape) is None


@pytest.mark.parametrize("seed", range(6))
def test_a_few_words_of_any_bits_do_not_make_factors_that_the_format_lacks(seed: int) -> None:
    random = np.random.default_rng(seed)
    before = random.standard_normal((126, 71)) * 0.02
    after = before + random.standard_normal((126, 5)) @ random.standard_normal((5, 71)) * 0.02
    pair = [values.astype(np.float16).view(np.uint16) for values in (after, before)]
    for words in pair:
        odd = random.random(words.shape) < 0.05
        words[odd] = random.integers(0, 1 << 16, odd.sum(), dtype=np.uint16)
    found = fit_low_rank(DType.F16, pair[0], pair[1], 126, 71)
    assert found is None or 1 <= found.floor <= 30


@every_dtype
def test_a_few_rows_or_columns_that_changed_are_no_fault(dtype: DType) -> None:
    before, after = (words_of(t["up.weight"], dtype) for t in (base(), finetune(1e-3)))
    for n in (1, 2, 5):
        for changed in (np.s_[:n], np.s_[:, :n], np.s_[::16], np.s_[:: before.shape[0] // n, ::64]):
            tuned = before.copy()
            tuned[changed] = after[changed]
            fit = fit_low_rank(dtype, tuned, before, *before.shape)
            assert fit is None or 1 <= fit.floor < FLOAT_WORDS[dtype].max_exponent
