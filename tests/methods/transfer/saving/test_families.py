"""Which adapters are of one task: by their seeds, their contracts, and sketches of their data."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.families import leaders, pool_of, show_same_task
from deltahub.methods.transfer.kit import Seed, TransferKit
from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport, Threshold
from deltahub.methods.transfer.measures.distances import (
    Sketch,
    median_gamma,
    rounded_gamma,
    sketch_of,
)
from deltahub.methods.transfer.models.embeddings import embed
from support.transfer.tiny_world import Task, old_base, tokenizer

REPORT = DiscriminatorReport(
    auc=0.9, auc_error=0.02, epoch=1, n_trained=80, n_real=10, n_synthetic=10, loss=0.2,
    has_single_labels=True,
    thresholds=(Threshold(margin=0.0, real_kept=0.9, synthetic_kept=0.1),),
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    """The parts of a kit that say what task it shows."""

    seeds: tuple[str, ...] = ("a", "b")
    sketch: Sketch | None = None
    contract: Contract = field(default_factory=Contract)
    base: str = "org/base@" + "0" * 40

    @property
    def kit(self) -> TransferKit:
        return TransferKit(
            name="x", base=self.base, contract=self.contract, n_examples=100, sketch=self.sketch,
            seeds=tuple(Seed(input=each) for each in self.seeds), discriminator=REPORT,
            adapter_sha256="0" * 64, discriminator_sha256="0" * 64, tokenizer_sha256="0" * 64,
        )  # fmt: skip


def drawn(mean: float, seed: int, n: int = 200, gamma: float = 0.5, noise: float = 0.005) -> Sketch:
    """Of a sample of a normal distribution in four dimensions."""
    rng = np.random.default_rng(seed)
    return sketch_of(rng.normal(mean, 1, (n, 4)), gamma, noise=noise, noise_source=rng)


def test_samples_of_one_distribution_are_near_and_those_of_others_are_not() -> None:
    pairs = [(drawn(0, 2 * i), drawn(0, 2 * i + 1)) for i in range(30)]
    # is_near takes about one pair in twenty of one distribution for two distributions.
    assert sum(one.is_near(other) for one, other in pairs) >= 27
    assert not any(drawn(0, i).is_near(drawn(0.5, 100 + i)) for i in range(30))
    # Few records say less, and so does much noise.
    assert drawn(0, 1, n=10).is_near(drawn(0.5, 2, n=10))
    assert drawn(0, 1, noise=0.05).is_near(drawn(0.3, 2, noise=0.05))


def test_sketches_of_other_features_are_never_near() -> None:
    one = drawn(0, 1)
    assert one.is_near(one)
    for change in ({"gamma": 1.0}, {"seed": 1}, {"width": 5}, {"values": one.values[:256]}):
        assert not one.is_near(one.model_copy(update=change))


def test_gamma_is_a_power_of_two() -> None:
    assert [rounded_gamma(each) for each in (0.9, 1.4, 1.5, 0.01)] == [1, 1, 2, 0.0078125]


def test_the_inputs_of_a_task_are_near_each_other_and_far_from_another_tasks() -> None:
    model = old_base()

    def sketch(task: int, sample: int) -> Sketch:
        texts = [each.text for each in Task(task).examples(120, sample)]
        found = embed(model, tokenizer(), texts)
        gamma = rounded_gamma(median_gamma(embed(model, tokenizer(), OTHERS)))
        return sketch_of(found, gamma, noise_source=np.random.default_rng((task, sample)))

    one, again, other = sketch(5, 0), sketch(5, 1), sketch(6, 0)
    assert one.is_near(again)
    assert not one.is_near(other)


OTHERS = [f"{i:04d}" for i in range(0, 10_000, 101)]


def test_kits_show_one_task_by_equal_seeds_or_near_sketches() -> None:
    near, far = drawn(0, 1), drawn(0.5, 2)
    kit = Told(sketch=near).kit
    assert show_same_task(kit, Told(("b", "a")).kit)
    assert not show_same_task(kit, Told(("a", "c")).kit)
    assert show_same_task(kit, Told(("c", "d"), drawn(0, 3)).kit)
    assert not show_same_task(kit, Told(("c", "d"), far).kit)
    # Embeddings of another base say nothing.
    assert not show_same_task(kit, Told(("c",), near, base="org/other@" + "0" * 40).kit)
    assert not show_same_task(kit, Told(contract=Contract(max_new_tokens=3)).kit)


@pytest.mark.parametrize(
    ("groups", "seeds", "found"),
    [
        ("xxxx", "abab", [0, 1, 0, 1]),
        ("xyxy", "aaaa", [0, 1, 0, 1]),
        ("xxx", "aba", [0, None, 0]),
        ("x-x", "aaa", [0, None, 0]),
        ("xyz", "aaa", [None, None, None]),
        ("", "", []),
    ],
)
def test_each_adapter_follows_the_first_of_its_task_in_its_group(
    groups: str, seeds: str, found: list[int | None]
) -> None:
    kits = [
        None if group == "-" else (group, Told((seed,)).kit)
        for group, seed in zip(groups, seeds, strict=True)
    ]
    assert leaders(kits) == found


def test_inputs_come_from_the_kits_of_a_task_with_seeds_of_their_own() -> None:
    kits = [Told((seed,)).kit for seed in "abac"]
    assert pool_of(kits, [0, 0, 0, 3], 0) == [0, 1]
    assert pool_of([*kits, None], [0, 0, 0, 0, None], 0) == [0, 1, 3]
    many = [Told((str(i),)).kit for i in range(20)]
    assert pool_of(many, [0] * 20, 0) == list(range(16))
