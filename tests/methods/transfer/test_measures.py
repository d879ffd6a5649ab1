"""Agreement, bounds, flips, the promise, the gate and the choice, on numbers made by hand."""

import math

import numpy as np
import pytest

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.measures.agreement import (
    agreement,
    disagreements,
    flips,
    promised_accuracy,
    recovery,
)
from deltahub.methods.transfer.measures.discrimination import balanced, measure, split
from deltahub.methods.transfer.measures.distances import (
    features,
    median_gamma,
    sketch_of,
    squared_mmd,
)
from deltahub.methods.transfer.measures.gate import Rung, choose, choose_start, decide
from deltahub.methods.transfer.measures.intervals import (
    Share,
    area_error,
    area_under_curve,
    wilson_bounds,
)

PLAIN = Contract()


def share(hits: int, n: int = 100) -> Share:
    return Share(n=n, hits=hits)


def test_wilson_bounds_are_the_published_ones() -> None:
    # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I.
    for hits, n, lower, upper in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson_bounds(hits, n) == pytest.approx((lower, upper), abs=5e-5)
    assert wilson_bounds(0, 0) == (0.0, 1.0)
    assert wilson_bounds(7, 7)[1] == 1.0


def test_the_bounds_of_few_inputs_come_with_a_word() -> None:
    said = Share(n=10, hits=3).caution()
    assert said is not None
    assert "only 10 inputs" in said
    assert f"{wilson_bounds(10, 10)[0]:.0%}" == "72%"
    assert "agreement of 72% could not be ruled out" in said
    assert "only 1 input measured" in str(Share(n=1, hits=1).caution())
    assert [Share(n=n, hits=0).caution() for n in (0, 21)] == [None, None]


def test_agreement_compares_answers_and_not_white_space() -> None:
    assert agreement(["a b", "c", "d"], [" a  b\n", "c", "e"], PLAIN) == Share(n=3, hits=2)
    letters = Contract(answer_pattern=r"[A-D]\b")
    assert agreement(["It is B."], ["B, surely"], letters).value == 1.0


def test_flips_count_what_broke_and_what_was_repaired() -> None:
    found = flips(["a", "b", "c", "d"], ["a", "b", "x", "x"], ["a", "x", "c", "y"], PLAIN)
    assert (found.n, found.negative, found.positive) == (4, 1, 1)
    assert found.negative_rate == found.positive_rate == 0.25


def test_disagreements_are_listed_up_to_fifty() -> None:
    texts = [str(i) for i in range(80)]
    found = disagreements(texts, ["a"] * 80, ["a"] * 5 + ["b"] * 75, PLAIN)
    assert len(found) == 50
    assert (found[0].prompt, found[0].teacher, found[0].student) == ("5", "a", "b")


def test_recovery_and_promise_are_their_formulas() -> None:
    assert recovery(0.8, 0.5) == pytest.approx(0.6)
    assert recovery(0.4, 0.5, 0.9) == pytest.approx(-0.25)
    assert recovery(1.0, 1.0) is None
    assert promised_accuracy(0.9, 0.95) == pytest.approx(0.85)
    assert promised_accuracy(0.1, 0.5) == 0.0


def test_two_models_differ_in_accuracy_by_no_more_than_they_disagree() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        right, teacher, student = rng.integers(0, 3, (3, 40)).astype(str).tolist()
        agreed = agreement(teacher, student, PLAIN).value
        accurate = [agreement(right, each, PLAIN).value for each in (teacher, student)]
        assert accurate[1] >= accurate[0] - (1 - agreed) - 1e-12


def test_the_gate_opens_for_a_result_that_is_close_and_better_than_the_base() -> None:
    decision = decide(share(99), share(20), 0.8)
    assert decision.is_published
    assert decision.promise == pytest.approx(0.8 - (1 - share(99).lower))


@pytest.mark.parametrize(
    ("agreed", "base", "sentence"),
    [
        (share(99), share(99), "adds nothing"),
        (share(99), share(95), "overlap"),
        (share(80), share(10), "more than the allowed 10.0%"),
        (share(4, 4), share(0, 4), "more than the allowed"),
    ],
)
def test_the_gate_stays_shut_and_says_why(agreed: Share, base: Share, sentence: str) -> None:
    decision = decide(agreed, base, None)
    assert not decision.is_published
    assert decision.promise is None
    assert sentence in " ".join(decision.reasons)


def test_the_best_way_is_chosen_and_a_cheaper_one_within_its_bounds() -> None:
    assert choose([(Rung.COPY, share(20)), (Rung.TRANS_LORA, share(95))]) is Rung.TRANS_LORA
    # The lower bound of 95 in 100 is 88.8 %.
    assert choose([(Rung.TRANS_LORA, share(95)), (Rung.COPY, share(89))]) is Rung.COPY
    assert choose([(Rung.TRANS_LORA, share(95)), (Rung.COPY, share(88))]) is Rung.TRANS_LORA
    ties = [(Rung.TITOK, share(9)), (Rung.ACTIVATION_MAP, share(9)), (Rung.TRANS_LORA, share(9))]
    assert choose(ties) is Rung.ACTIVATION_MAP
    assert choose([(Rung.FREEZE, share(100)), (Rung.COPY, share(10))]) is Rung.COPY
    assert choose([]) is Rung.FREEZE


def test_the_area_counts_pairs_in_the_right_order() -> None:
    rng = np.random.default_rng(1)
    positives, negatives = rng.integers(0, 6, 17).tolist(), rng.integers(-2, 4, 11).tolist()
    pairs = [(a > b) + (a == b) / 2 for a in positives for b in negatives]
    assert area_under_curve(positives, negatives) == pytest.approx(sum(pairs) / len(pairs))
    assert area_under_curve([1, 2], [0, 0.5]) == 1.0
    assert area_error(1.0, 10, 10) == 0.0
    # Half the pairs in order, of 10 and 10: q1 = 1/3, q2 = 1/3.
    wanted = math.sqrt((0.25 + 18 * (1 / 3 - 0.25)) / 100)
    assert area_error(0.5, 10, 10) == pytest.approx(wanted)


def test_a_discriminator_that_guesses_is_refused() -> None:
    rng = np.random.default_rng(2)
    guesses = measure(
        rng.normal(size=40).tolist(),
        rng.normal(size=40).tolist(),
        epoch=1,
        n_trained=10,
        has_single_labels=True,
    )
    with pytest.raises(CannotTransfer, match="guesses"):
        guesses.require_better_than_chance()
    good = measure([2.0, 1, 3], [-1.0, -2, 0.5], epoch=3, n_trained=10, has_single_labels=False)
    good.require_better_than_chance()
    said = " ".join(good.sentences())
    assert "keeps 100% of the former and 33% of the latter" in said
    assert "no single tokens" in said
    kept = [each.real_kept for each in good.thresholds]
    assert kept == sorted(kept, reverse=True)


def test_examples_are_split_alike_for_one_seed_and_balanced() -> None:
    trained, held_out = split(range(50), 3, "examples")
    assert (len(trained), len(held_out)) == (40, 10)
    assert sorted([*trained, *held_out]) == list(range(50))
    assert split(range(50), 3, "examples") == (trained, held_out)
    with pytest.raises(CannotTransfer, match="at least 5 examples, not 4"):
        split(range(4), 3, "examples")
    order = list(balanced(range(6), range(100, 102), seed=1))
    assert len(order) == 12
    assert all((a < 100) and (b >= 100) for a, b in zip(order[::2], order[1::2], strict=True))
    assert sorted(order[::2]) == list(range(6))
    assert sorted(order[1::2]) == [100] * 3 + [101] * 3


def test_the_discrepancy_is_its_formula() -> None:
    one, other = np.array([[0.0], [1.0]]), np.array([[2.0]])
    near, mid, far = math.exp(-0.5), math.exp(-0.5), math.exp(-2.0)
    wanted = (2 + 2 * near) / 4 + 1 - 2 * (mid + far) / 2
    assert squared_mmd(one, other, 0.5) == pytest.approx(wanted)
    assert squared_mmd(one, one, 0.5) == 0.0
    assert median_gamma(np.array([[0.0], [2.0], [4.0]])) == pytest.approx(1 / 8)


def test_random_features_approach_the_kernel() -> None:
    rows = np.random.default_rng(3).normal(size=(6, 4))
    found = features(rows, 0.3, seed=1, n=20_000)
    wanted = np.exp(-0.3 * ((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    assert found @ found.T == pytest.approx(wanted, abs=0.03)


def test_a_sketch_tells_the_distance_without_the_data() -> None:
    rng = np.random.default_rng(4)
    private = rng.normal(size=(300, 5))
    gamma = median_gamma(private)
    sketch = sketch_of(private, gamma, noise=0.005, noise_source=rng)
    near, far = rng.normal(size=(300, 5)), rng.normal(0.7, 1, size=(300, 5))
    assert sketch.squared_distance(near) < 0.02
    wanted = squared_mmd(private, far, gamma)
    assert sketch.squared_distance(far) == pytest.approx(wanted, rel=0.15)


def test_the_noise_is_stated_and_another_one_each_time() -> None:
    rows = np.ones((10, 2))
    sketches = [sketch_of(rows, 1.0, noise=0.1) for _ in range(2)]
    assert sketches[0].values != sketches[1].values
    assert sketches[0].noise == 0.1
    spread = np.std(np.array(sketches[0].values) - np.array(sketch_of(rows, 1.0, noise=0).values))
    assert spread == pytest.approx(0.1, rel=0.2)
    assert sketches[0].sensitivity == pytest.approx(2 * math.sqrt(2) / 10)
    assert sketch_of(rows, 1.0, noise=0).epsilon() == math.inf
    assert sketches[0].epsilon(1e-5) == pytest.approx(
        2 * math.sqrt(2) / 10 * math.sqrt(2 * math.log(1.25e5)) / 0.1
    )


def test_a_student_starts_from_the_cheapest_good_port_that_surely_beats_the_new_base() -> None:
    base, good, better, poor = share(20), share(80), share(95), share(28)
    assert choose_start([(Rung.COPY, good), (Rung.ACTIVATION_MAP, share(82))], base) == Rung.COPY
    both = [(Rung.COPY, good), (Rung.ACTIVATION_MAP, better)]
    assert choose_start(both, base) == Rung.ACTIVATION_MAP
    assert choose_start([(Rung.COPY, poor), (Rung.ACTIVATION_MAP, good)], base) == (
        Rung.ACTIVATION_MAP
    )
    # 28 of 100 may be no more than 20 of 100.
    assert choose_start([(Rung.COPY, poor)], base) is None
    assert choose_start([], base) is None


def test_the_noise_moves_distances_as_far_as_is_said() -> None:
    rng = np.random.default_rng(9)
    private, near, far = (rng.normal(each, 1, size=(200, 4)) for each in (0, 0.2, 0.3))
    gamma = median_gamma(near)
    plain = sketch_of(private, gamma, noise=0)
    sketches = [sketch_of(private, gamma, noise=0.02, noise_source=rng) for _ in range(200)]
    # What the noise adds is taken off: no bias where nothing is clipped.
    found = [each.squared_distance(far + 1) for each in sketches]
    assert np.mean(found) == pytest.approx(plain.squared_distance(far + 1), rel=0.02)
    differences = [
        each.squared_distance(far + 1) - each.squared_distance(near + 1) for each in sketches
    ]
    wanted = sketches[0].comparison_error(squared_mmd(far + 1, near + 1, gamma))
    assert np.std(differences) == pytest.approx(wanted, rel=0.25)
    # Of equal sets half of the estimates are negative, and become 0.
    same = [each.squared_distance(private) for each in sketches]
    assert np.mean(same) == pytest.approx(0.4 * math.sqrt(2 * 512) * 0.02**2, rel=0.3)
    assert plain.comparison_error(0.5) == 0
