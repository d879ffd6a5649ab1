"""Bits are spent where they save most, and never more of them than there are."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.methods.errors import CannotExport
from deltahub.methods.exporting.budget import Trial, choose_bits


def trials(count: int, scale: float) -> list[Trial]:
    """Of a weight whose error halves with each bit."""
    return [
        Trial(bits, round(count * (3.6 + bits) / 8), scale / 2**bits) for bits in (0, 1, 3, 5, 7)
    ]


def test_the_weight_that_loses_more_gets_more_bits() -> None:
    found = choose_bits(
        {"hard": trials(1000, 0.3), "easy": trials(1000, 0.1)}, {"hard": 1000, "easy": 1000}, 6
    )
    assert found["hard"] > found["easy"]


def test_all_bits_are_given_where_there_is_room_and_none_where_there_is_not() -> None:
    weights = {"a": trials(1000, 0.3), "b": trials(3000, 0.2)}
    counts = {"a": 1000, "b": 3000}
    assert choose_bits(weights, counts, 64) == {"a": 7, "b": 7}
    assert choose_bits(weights, counts, 3.6) == {"a": 0, "b": 0}
    with pytest.raises(CannotExport, match=r"3\.5 bits an element is too small.* take 3\.60"):
        choose_bits(weights, counts, 3.5)


def test_a_number_of_bits_that_costs_more_and_loses_more_is_never_chosen() -> None:
    odd = [Trial(0, 100, 0.5), Trial(1, 300, 0.4), Trial(3, 200, 0.1), Trial(5, 400, 0.2)]
    for budget in (1.0, 1.6, 2.4, 9.0):
        assert choose_bits({"a": odd}, {"a": 1000}, budget)["a"] in (0, 3)


weights = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 1)), min_size=1, max_size=4),
    min_size=1,
)


@given(weights, st.floats(0.5, 20))
def test_the_budget_is_kept_and_no_single_step_more_would_fit_and_help(
    drawn: dict[str, list[tuple[int, float]]], budget: float
) -> None:
    tried = {name: [Trial(i, *each) for i, each in enumerate(all_)] for name, all_ in drawn.items()}
    counts = {name: 1000 for name in tried}
    sizes = [{t.bits: t.size_bytes for t in each} for each in tried.values()]
    fits = [
        sum(some) * 8 / sum(counts.values()) <= budget
        for some in product(*(each.values() for each in sizes))
    ]
    try:
        found = choose_bits(tried, counts, budget)
    except CannotExport:
        assert not any(fits)
        return
    spent = sum(
        next(t.size_bytes for t in tried[name] if t.bits == bits) for name, bits in found.items()
    )
    assert spent * 8 <= budget * sum(counts.values()) * (1 + 1e-9)
    assert set(found) == set(tried)
