"""Rejection sampling: what is kept, what is counted, and when it ends."""

from collections.abc import Sequence

import pytest

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.rejection import Rejection, sample

SEEDS = ("seed a", "seed b")


def numbered(call: int) -> list[str]:
    return [f"item {call}/{i}" for i in range(4)]


def evens(texts: Sequence[str]) -> list[float]:
    """Yes for even items, and a draw, which is no yes, for the others."""
    return [1.5 if int(each[-1]) % 2 == 0 else 0.0 for each in texts]


def test_an_input_is_kept_exactly_if_yes_is_more_likely_than_no() -> None:
    state = Rejection.start(SEEDS, wanted=10)
    state.judge(["a", "b", "c", "d"], [0.1, 0.0, -0.1, 700.0])
    assert state.accepted == ["a", "d"]
    assert state.report().acceptance == 0.5


def test_it_ends_when_enough_are_accepted() -> None:
    state = sample(Rejection.start(SEEDS, wanted=5), numbered, evens)
    assert state.accepted == ["item 0/0", "item 0/2", "item 1/0", "item 1/2", "item 2/0"]
    report = state.report()
    assert report.is_complete
    assert (report.drawn, report.judged, report.accepted) == (12, 12, 6)
    assert sum(report.yes_histogram) == 12


def test_it_ends_at_the_budget_and_says_so() -> None:
    state = sample(
        Rejection.start(SEEDS, wanted=50, times=20), numbered, lambda texts: [-1.0] * len(texts)
    )
    report = state.report()
    assert (report.drawn, report.budget, report.accepted) == (1000, 1000, 0)
    assert not report.is_complete
    said = " ".join(report.sentences())
    assert "0 of 50" in said
    assert "the budget of 1000 draws is spent" in said
    assert "more seeds" in said
    with pytest.raises(CannotTransfer, match="at least 5 accepted inputs") as failure:
        state.require_any(5)
    assert failure.value.code == "cannot_transfer"


def test_the_last_call_cannot_pass_the_budget() -> None:
    state = sample(Rejection.start(SEEDS, wanted=3, times=2), numbered, lambda t: [-1.0] * len(t))
    assert state.report().drawn == 6
    assert state.report().judged == 6


def test_a_generator_that_writes_nothing_ends_too() -> None:
    state = sample(Rejection.start(SEEDS, wanted=2, times=5), lambda call: [], None)
    assert state.report().drawn == 10
    assert state.calls == 10


def test_neither_seeds_nor_duplicates_are_kept() -> None:
    def draw(call: int) -> list[str]:
        return ["seed a", " seed  b", "new", "new ", f"new {call}"]

    state = sample(Rejection.start(SEEDS, wanted=4), draw, None)
    assert state.accepted == ["new", "new 0", "new 1", "new 2"]
    report = state.report()
    assert (report.seed_copies, report.duplicates) == (6, 5)


def test_a_stored_sampling_goes_on_as_if_it_had_never_stopped() -> None:
    whole = sample(Rejection.start(SEEDS, wanted=7), numbered, evens)
    state = Rejection.start(SEEDS, wanted=7)
    while not state.is_done:
        state = Rejection.model_validate_json(state.model_dump_json())
        fresh = state.take(numbered(state.calls))
        state.judge(fresh, evens(fresh))
    assert state == whole
