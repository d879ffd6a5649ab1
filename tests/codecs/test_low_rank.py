"""Thin factors predict what really trained models became, and are left out where they cannot."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs.dtypes import DType
from deltahub.codecs.low_rank import FLOAT_WORDS, LowRank, Words, deltas, predict
from deltahub.codecs.low_rank_search import fit_low_rank
from deltahub.codecs.low_rank_sizes import residual_bits
from support.tiny_models import base, cast, finetune

TORCH = {DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F32: torch.float32}
every_dtype = pytest.mark.parametrize("dtype", list(FLOAT_WORDS), ids=lambda dtype: dtype.name)


def predicted_word(dtype: DType, word: int, product: int, floor: int) -> int:
    """One word's prediction, as the format says it, in Python's integers."""
    floats = FLOAT_WORDS[dtype]
    digits, guard = floats.mantissa_bits, floats.guard_bits
    product = (product + 2**31) % 2**32 - 2**31
    stored = (word >> digits) & floats.max_exponent
    exponent = max(stored, 1)
    aligned = max(exponent, floor)
    moved = min(max(product >> min(aligned - floor, 31), -(2**30)), 2**30 - 1)
    if stored == floats.max_exponent or moved == 0:
        return word
    mantissa = word % (1 << digits) + ((stored > 0) << digits)
    magnitude = (mantissa << guard) >> min(aligned - exponent, 31)
    total = (-magnitude if word & floats.sign else magnitude) + moved
    if total == 0:
        return word & floats.sign
    result = max(aligned + abs(total).bit_length() - (digits + 1 + guard), 1)
    drop = result + guard - aligned
    if drop > 0:
        rounded, rest = divmod(abs(total), 1 << drop)
        rounded += rest > 1 << (drop - 1) or (rest == 1 << (drop - 1) and rounded % 2 == 1)
    else:
        rounded = abs(total) << -drop
    rounded += (result - 1) << digits
    if rounded >> digits == floats.max_exponent:
        return word
    return rounded | (floats.sign if total < 0 else 0)


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
    )
    base_words = np.array(words, f"<u{dtype.itemsize}").reshape(rows, columns)
    products = low_rank.left.astype(object) @ low_rank.right.astype(object)
    expected = [
        predicted_word(dtype, word, product, floor)
        for word, product in zip(words, products.ravel().tolist(), strict=True)
    ]
    assert predict(dtype, base_words, low_rank).ravel().tolist() == expected


@every_dtype
def test_a_fine_tune_is_predicted_in_fewer_bits(dtype: DType) -> None:
    name = "up.weight"
    before, after = words_of(base()[name], dtype), words_of(finetune(1e-4)[name], dtype)
    for effort in ("default", "max"):
        fit = fit_low_rank(dtype, after, before, *before.shape, effort)
        if fit is None:
            continue
        one_class = np.zeros(before.shape, np.int64)
        without = residual_bits(deltas(dtype, after, before), one_class)
        predicted = predict(dtype, before, fit)
        assert residual_bits(deltas(dtype, after, predicted), one_class) < without


def test_the_same_input_has_the_same_fit() -> None:
    before, after = (words_of(t["up.weight"], DType.BF16) for t in (base(), finetune(1e-4)))
    one, other = (fit_low_rank(DType.BF16, after, before, *before.shape) for _ in range(2))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.floor == other.floor
        assert np.array_equal(one.left, other.left)
        assert np.array_equal(one.right, other.right)


@every_dtype
def test_unrelated_models_and_equal_ones_have_no_factors(dtype: DType) -> None:
    name = "up.weight"
    before, stranger = (words_of(base(seed)[name], dtype) for seed in (0, 1))
    assert fit_low_rank(dtype, stranger, before, *before.shape) is None
    assert fit_low_rank(dtype, before, before, *before.shape, "max") is None


def test_small_tensors_and_other_dtypes_have_no_factors() -> None:
    before, after = (words_of(t["up.bias"], DType.BF16) for t in (base(), finetune(1e-4)))
    assert fit_low_rank(DType.BF16, after, before, 1, after.size) is None
    assert fit_low_rank(DType.I16, after, before, 1, after.size) is None
    narrow = [cast(t, torch.bfloat16)["head.weight"][:63] for t in (base(), finetune(1e-4))]
    before, after = (words_of(tensor, DType.BF16) for tensor in narrow)
    assert fit_low_rank(DType.BF16, after, before, *before.shape) is None
