"""The arithmetic of low-rank updates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.methods.adapters.comparison import compare_adapters
from deltahub.methods.adapters.conversion import fitted, update_of
from deltahub.methods.adapters.extraction import rank_within, tails
from deltahub.methods.adapters.factors import Factors, difference, spectrum_of
from deltahub.methods.adapters.initial.disguised import LIKELY, principal_cosine
from deltahub.methods.adapters.initial.olora import olora_factors
from deltahub.methods.adapters.initial.principal import (
    initial_factors,
    principal_spectrum,
    singular_values,
)
from deltahub.methods.adapters.initial.qpissa import quantization_errors, quantized_start
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.quantization.nf4 import LEVELS, quantize, round_trip

SHAPES = st.tuples(st.integers(3, 40), st.integers(3, 40), st.integers(1, 6), st.integers(0, 99))


def factors(outputs: int, inputs: int, rank: int, seed: int) -> Factors:
    rng = np.random.default_rng(seed)
    return Factors(rng.normal(size=(rank, inputs)), rng.normal(size=(outputs, rank)))


def decaying(rows: int = 60, columns: int = 90, seed: int = 0) -> np.ndarray:
    """A matrix whose singular values fall, as those of trained weights do."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(rows, rows)))[0]
    right = np.linalg.qr(rng.normal(size=(columns, rows)))[0]
    return np.asarray(left * (1 / (1 + np.arange(rows))) @ right.T, np.float32)


@given(SHAPES)
def test_a_difference_and_its_spectrum_are_those_of_the_products(
    shape: tuple[int, int, int, int],
) -> None:
    outputs, inputs, rank, seed = shape
    one, two = factors(outputs, inputs, rank, seed), factors(outputs, inputs, rank, seed + 1)
    product = one.up @ one.down - two.up @ two.down
    found = difference(one, two)
    assert np.allclose(found.up @ found.down, product)
    assert found.norm == pytest.approx(np.linalg.norm(product))
    assert one.inner(two) == pytest.approx(((one.up @ one.down) * (two.up @ two.down)).sum())
    values = np.linalg.svd(product, compute_uv=False)
    spectrum = spectrum_of(found)
    n = min(len(values), len(spectrum.values))
    assert np.allclose(spectrum.values[:n], values[:n], atol=1e-9)
    for kept in range(1, len(spectrum.values)):
        best = spectrum.truncated(kept)
        lost = np.linalg.norm(product - best.up @ best.down) / np.linalg.norm(product)
        assert spectrum.errors()[kept] == pytest.approx(lost, abs=1e-7)


@given(SHAPES, st.floats(1e-6, 0.9))
def test_the_rank_for_an_error_is_the_smallest(
    shape: tuple[int, int, int, int], error: float
) -> None:
    spectrum = spectrum_of(factors(*shape))
    rank = spectrum.rank_for(error)
    assert spectrum.errors()[rank] <= error
    assert rank == 1 or spectrum.errors()[rank - 1] > error


def test_nothing_learnt_is_no_update() -> None:
    one = factors(10, 12, 3, 0)
    update = update_of(one, one, 2.0)
    assert update.norm < 1e-12
    low, error = fitted(update, 3, is_rounded=True)
    assert error <= 1
    assert np.abs(low.up @ low.down).max() < 1e-12
    zeros = Factors(np.zeros((2, 5)), np.zeros((4, 2)))
    assert spectrum_of(zeros).rank_for(0.1) == 1
    assert zeros.cosine(zeros) == 0


def test_all_matrices_together_are_within_the_error() -> None:
    values = [singular_values(decaying(seed=seed)) for seed in range(3)]
    rank = rank_within([tails(each) for each in values], 0.2)
    assert rank is not None
    total = sum(float((each**2).sum()) for each in values)
    lost = [
        sum(float((each[at:] ** 2).sum()) for each in values) / total for at in (rank, rank - 1)
    ]
    assert lost[0] <= 0.04 < lost[1]
    assert rank_within([[1.0] * 2000], 0.5) is None


@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_both_decompositions_agree_and_have_fixed_signs(shape: tuple[int, int]) -> None:
    weight = decaying() if shape == (60, 90) else np.ascontiguousarray(decaying().T)
    exact = principal_spectrum(weight, 5, iterations=None)
    fast = principal_spectrum(weight, 5, iterations=12)
    for one, two in zip(
        (exact.left, exact.values, exact.right), (fast.left, fast.values, fast.right), strict=True
    ):
        assert np.allclose(one, two, atol=2e-4)
    again = principal_spectrum(weight, 5, iterations=12)
    assert np.array_equal(fast.left, again.left)
    largest = np.abs(exact.left).argmax(axis=0)
    assert (exact.left[largest, range(5)] > 0).all()
    start = initial_factors(exact, 5, 4.0)
    # A A^T = B^T B = diag(S / s), and the residual's norm is that of the values left out.
    assert np.allclose(start.down @ start.down.T, np.diag(exact.values / 4), atol=1e-7)
    assert np.allclose(start.up.T @ start.up, np.diag(exact.values / 4), atol=1e-7)
    residual = weight - 4 * start.up @ start.down
    values = singular_values(weight)
    assert np.linalg.norm(residual) == pytest.approx(np.linalg.norm(values[5:]), rel=1e-4)
    assert np.linalg.norm(residual, 2) == pytest.approx(values[5], rel=1e-4)


def test_olora_is_the_beginning_of_the_qr_decomposition() -> None:
    import torch

    weight = decaying()
    q, r = torch.linalg.qr(torch.tensor(weight))
    found = olora_factors(weight, 4)
    assert np.allclose(found.up @ found.down, (q[:, :4] @ r[:4]).numpy(), atol=1e-6)


@pytest.mark.parametrize("rank", [0, 61])
def test_a_rank_that_no_weight_has_is_refused(rank: int) -> None:
    with pytest.raises(CannotAdapt, match="does not fit"):
        principal_spectrum(decaying(), rank, iterations=4)
    with pytest.raises(CannotAdapt, match="does not fit"):
        olora_factors(decaying(), rank)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=200))
@settings(max_examples=50)
def test_nf4_takes_the_nearest_level_and_is_idempotent(values: list[float]) -> None:
    weight = np.array(values, np.float32)
    codes, scales = quantize(weight)
    found = round_trip(weight)
    assert np.array_equal(round_trip(found), found)
    for at, value in enumerate(weight):
        scale = scales[at // 64]
        distances = np.abs(LEVELS * scale - value)
        assert distances[codes[at]] <= distances.min() + 1e-6 * scale


def test_qpissa_loses_less_with_each_iteration() -> None:
    weight = decaying()
    lost = [
        quantization_errors(weight, quantized_start(weight, 8, 1.0, iters=n, iterations=8), 1.0)
        for n in (1, 2, 5)
    ]
    assert lost[2].fitted < lost[1].fitted < lost[0].fitted < lost[0].plain
    assert 0 < lost[0].reduction < lost[2].reduction < 1


def test_a_principal_part_is_told_from_other_updates() -> None:
    weight = decaying()
    start = initial_factors(principal_spectrum(weight, 6, iterations=8), 6, 1.0)
    rng = np.random.default_rng(1)
    learnt = 0.1 * rng.normal(size=start.up.shape) * np.abs(start.up).mean()
    trained = Factors(start.down, start.up + learnt)
    assert principal_cosine(weight, trained) > LIKELY
    for rank in (6, 30, 50):  # random directions of so high a rank span most of what there is
        other = Factors(rng.normal(size=(rank, 90)), rng.normal(size=(60, rank)))
        assert principal_cosine(weight, other) < LIKELY / 2
    # What a conversion makes of it contains the principal directions, and is no principal part.
    assert principal_cosine(weight, difference(trained, start)) < LIKELY
    assert principal_cosine(weight, Factors(np.ones((60, 90)), np.ones((60, 60)))) == 0
    assert principal_cosine(np.full_like(weight, np.nan), trained) == 0


def test_adapters_are_compared_by_what_they_do() -> None:
    one, other = factors(20, 30, 4, 0), factors(20, 30, 4, 1)
    mixed = Factors(np.linalg.inv(np.diag([2.0, 3, 4, 5])) @ one.down, one.up * [2.0, 3, 4, 5])
    same = compare_adapters(("a", {"m": one}), ("b", {"m": mixed.scaled(3), "n": other}))
    (module,) = same.modules
    assert module.cosine == pytest.approx(1)
    assert module.input_overlap == module.output_overlap == pytest.approx(1)
    assert module.norm_ratio == pytest.approx(3)
    assert same.only_second == ("n",)
    unlike = compare_adapters(("a", {"m": one}), ("b", {"m": other}))
    assert abs(unlike.cosine) < 0.3
    assert unlike.modules[0].input_overlap < 0.5
    with pytest.raises(ValueError, match="no module of one name"):
        compare_adapters(("a", {"m": one}), ("b", {"n": other}))
