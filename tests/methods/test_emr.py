"""EMR-Merging: what the method promises, and what a plain statement of it computes."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deltahub.methods.merging.elect import Values, elect_unified, mask_of, sums_of
from deltahub.methods.merging.emr import RESCALERS, Sums, add_sums, scales
from deltahub.methods.merging.report import fidelity
from support.merging.plain_emr import plain_emr
from support.models import tiny_models as tiny

# Values of a 16-bit dtype, whose sums are exact in float64.
short_floats = arrays(np.float16, 12, elements=st.floats(-4, 4, width=16))
families = st.tuples(short_floats, st.lists(short_floats, min_size=1, max_size=5))


def widened(family: tuple[Values, list[Values]]) -> tuple[Values, list[Values]]:
    base, tasks = family
    return base.astype(np.float64), [task.astype(np.float64) for task in tasks]


def task_sums(family: tuple[Values, list[Values]]) -> list[Sums]:
    base, tasks = widened(family)
    unified = elect_unified(base, tasks)
    return [sums_of(base, unified, task) for task in tasks]


def rebuilt(base: Values, unified: Values, task: Values, scale: float) -> Values:
    return base + scale * np.where(mask_of(base, unified, task), unified - base, 0)


@given(families)
def test_each_element_of_the_unified_model_is_one_of_the_inputs(
    family: tuple[Values, list[Values]],
) -> None:
    base, tasks = widened(family)
    unified = elect_unified(base, tasks)
    assert np.any([unified == each for each in (base, *tasks)], axis=0).all()


@given(families)
def test_the_elected_magnitude_is_the_largest_that_agrees(
    family: tuple[Values, list[Values]],
) -> None:
    base, tasks = widened(family)
    vector = elect_unified(base, tasks) - base
    masked = [np.where(mask_of(base, vector + base, t), np.abs(t - base), 0) for t in tasks]
    assert np.array_equal(np.abs(vector), np.max(masked, axis=0))


@given(families)
def test_a_mask_is_1_exactly_where_a_task_moves_as_the_unified_model_does(
    family: tuple[Values, list[Values]],
) -> None:
    base, tasks = widened(family)
    unified = elect_unified(base, tasks)
    elected = np.where(sum(task - base for task in tasks) > 0, 1.0, -1.0)
    for task in tasks:
        mask, moves = mask_of(base, unified, task), np.sign(task - base)
        assert np.array_equal(moves[mask], np.sign(unified - base)[mask])
        assert np.isin(moves[~mask] * elected[~mask], (0.0, -1.0)).all()


@given(families)
def test_masking_never_increases_the_error(family: tuple[Values, list[Values]]) -> None:
    base, tasks = widened(family)
    unified = elect_unified(base, tasks)
    for task, sums in zip(tasks, task_sums(family), strict=True):
        unmasked = float(((task - unified) ** 2).sum())
        assert sums.squared_error(1.0) <= unmasked + 1e-12 * sums.tau_l2


@given(families, st.randoms())
def test_the_order_of_the_tasks_changes_nothing(
    family: tuple[Values, list[Values]], random: Random
) -> None:
    base, tasks = family
    order = list(range(len(tasks)))
    random.shuffle(order)
    shuffled = (base, [tasks[number] for number in order])
    assert np.array_equal(elect_unified(*widened(family)), elect_unified(*widened(shuffled)))
    assert [task_sums(family)[number] for number in order] == task_sums(shuffled)


@given(families, st.integers(-6, 6))
def test_vectors_that_are_twice_as_long_have_the_same_masks_and_scales(
    family: tuple[Values, list[Values]], power: int
) -> None:
    _, tasks = widened(family)
    base, factor = np.zeros_like(tasks[0]), 2.0**power
    grown = [factor * task for task in tasks]
    unified, larger = elect_unified(base, tasks), elect_unified(base, grown)
    assert np.array_equal(larger, factor * unified)
    for task, after in zip(tasks, grown, strict=True):
        assert np.array_equal(mask_of(base, unified, task), mask_of(base, larger, after))
        both = (sums_of(base, unified, task), sums_of(base, larger, after))
        for rescaler in RESCALERS:
            one, other = (scales(rescaler, {"w": sums}) for sums in both)
            assert one == other


@given(short_floats, short_floats, st.integers(1, 4))
def test_one_task_and_equal_tasks_come_back_exactly(
    base: Values, task: Values, n_tasks: int
) -> None:
    base, (task,) = widened((base, [task]))
    unified = elect_unified(base, [task] * n_tasks)
    assert np.array_equal(unified, task)
    for rescaler in RESCALERS:
        assert scales(rescaler, {"w": sums_of(base, unified, task)}) == {"w": 1.0}


def test_tasks_that_change_different_elements_come_back_exactly() -> None:
    base = np.array([1.0, 2.0, 3.0, 4.0])
    changes = ([0.5, 0, 0, 0], [0, -0.25, 0, 0], [0, 0, 0, 8.0])
    tasks = [base + np.array(change) for change in changes]
    unified = elect_unified(base, tasks)
    for task in tasks:
        scale = scales("l1", {"w": sums_of(base, unified, task)})["w"]
        assert scale == 1.0
        assert np.array_equal(rebuilt(base, unified, task, scale), task)


def test_opposite_changes_elect_the_negative_sign() -> None:
    base, tasks = np.zeros(1), [np.array([2.0]), np.array([-2.0])]
    unified = elect_unified(base, tasks)
    assert unified.tolist() == [-2.0]
    assert [mask_of(base, unified, task)[0] for task in tasks] == [False, True]


@given(families)
def test_the_papers_scale_keeps_the_sum_of_magnitudes(
    family: tuple[Values, list[Values]],
) -> None:
    for sums in task_sums(family):
        scale = scales("l1", {"w": sums})["w"]
        if sums.n_masked:
            assert scale * sums.uni_l1 == pytest.approx(sums.tau_l1)


@given(families, families)
def test_the_scale_of_the_papers_code_keeps_the_sum_of_means(
    first: tuple[Values, list[Values]], second: tuple[Values, list[Values]]
) -> None:
    for one, other in zip(task_sums(first), task_sums(second), strict=False):
        scale = scales("mean-l1", {"a": one, "b": other})["a"]
        if one.n_masked or other.n_masked:
            merged = scale * (one.uni_l1 / one.size + other.uni_l1 / other.size)
            assert merged == pytest.approx(one.tau_l1 / one.size + other.tau_l1 / other.size)


@given(families)
def test_least_squares_is_never_worse_than_no_scale_or_nothing(
    family: tuple[Values, list[Values]],
) -> None:
    for sums in task_sums(family):
        scale = scales("l2", {"w": sums})["w"]
        assert 0 <= scale <= 1
        limit = min(sums.squared_error(1.0), sums.tau_l2)
        assert sums.squared_error(scale) <= limit + 1e-12 * sums.tau_l2


def trained() -> tuple[dict[str, Values], list[dict[str, Values]]]:
    def values(tensors: tiny.Tensors) -> dict[str, Values]:
        return {n: t.double().numpy().ravel() for n, t in tensors.items() if n != "head.weight"}

    return values(tiny.base()), [values(tiny.task(number)) for number in range(3)]


def test_trained_models_merge_as_the_paper_says() -> None:
    base, tasks = trained()
    plain = plain_emr(base, tasks)
    unified = {name: elect_unified(base[name], [t[name] for t in tasks]) for name in base}
    for name in base:
        np.testing.assert_allclose(unified[name], plain.unified[name], rtol=0, atol=1e-15)
    for number, task in enumerate(tasks):
        sums = {name: sums_of(base[name], unified[name], task[name]) for name in base}
        scale = scales("l1", sums)
        assert list(scale.values()) == pytest.approx([plain.scales[number]] * len(base))
        made = {n: rebuilt(base[n], unified[n], task[n], scale[n]) for n in base}
        squared = sum(float(((made[n] - task[n]) ** 2).sum()) for n in base)
        whole = sum(float(((task[n] - base[n]) ** 2).sum()) for n in base)
        error, cosine = fidelity(sums, scale)
        assert error == pytest.approx((squared / whole) ** 0.5)
        assert 0.5 < cosine < 1


def test_the_sums_of_slices_add_up_to_those_of_the_whole() -> None:
    base, tasks = trained()
    name = "up.weight"
    unified = elect_unified(base[name], [task[name] for task in tasks])
    whole = sums_of(base[name], unified, tasks[0][name])
    cut = 1000
    parts = [
        sums_of(base[name][part], unified[part], tasks[0][name][part])
        for part in (slice(cut), slice(cut, None))
    ]
    added = add_sums(parts)
    assert (added.size, added.n_masked) == (whole.size, whole.n_masked)
    assert added.tau_l1 == pytest.approx(whole.tau_l1)
    assert Sums.of_list(whole.size, whole.to_list()) == whole


def test_a_task_without_a_change_has_scale_1_and_one_without_a_mask_0() -> None:
    base = np.zeros(2)
    unified = elect_unified(base, [np.array([5.0, 5.0]), np.array([-1.0, -1.0]), base])
    assert scales("l1", {"w": sums_of(base, unified, base)}) == {"w": 1.0}
    assert scales("l1", {"w": sums_of(base, unified, np.array([-1.0, -1.0]))}) == {"w": 0.0}
