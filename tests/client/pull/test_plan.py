"""The plan of a pull: how each tensor of a file is fetched."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from deltahub.client.pull.plan import BATCH_BYTES, RebuildPlan, Slot, plan_rebuild
from deltahub.client.records import PlannedTensor


def name(n: int) -> bytes:
    return n.to_bytes(32, "big")


def slots(*tensors: int, size: int = 1000) -> list[Slot]:
    return [Slot(name(n), i * size, size) for i, n in enumerate(tensors)]


def stored(n: int, *bases: int, encoded: int = 100, size: int = 1000) -> PlannedTensor:
    return PlannedTensor(
        name(n).hex(), size, encoded, len(bases), "fm_delta", tuple(name(b).hex() for b in bases)
    )


def table(*tensors: PlannedTensor) -> dict[bytes, PlannedTensor]:
    return {bytes.fromhex(each.id): each for each in tensors}


def ids(groups: Sequence[Sequence[Slot]]) -> list[list[int]]:
    return [[int.from_bytes(slot.tensor, "big") for slot in group] for group in groups]


def test_what_is_here_is_copied() -> None:
    plan = plan_rebuild(slots(1, 2), table(stored(1), stored(2)), {name(1), name(2)})
    assert [slot.start for slot in plan.copies] == [0, 1000]
    assert not plan.waves
    assert not plan.ranges


def test_a_delta_whose_base_is_here_comes_as_a_frame_and_any_other_as_bytes() -> None:
    plan = plan_rebuild(slots(1, 2, 3), table(stored(1, 91), stored(2, 92), stored(3)), {name(91)})
    assert [ids(wave) for wave in plan.waves] == [[[1, 3]]]
    assert ids(plan.ranges) == [[2]]


def test_a_delta_of_a_tensor_in_the_same_file_waits_for_it() -> None:
    plan = plan_rebuild(slots(1, 2, 3), table(stored(1, 2), stored(2, 3), stored(3)), set())
    assert [ids(wave) for wave in plan.waves] == [[[3]], [[2]], [[1]]]


def test_what_the_hub_keeps_raw_or_does_not_name_comes_as_neighbouring_bytes() -> None:
    plan = plan_rebuild(slots(1, 2, 3), table(stored(1, encoded=1000), stored(2)), set())
    assert [ids(wave) for wave in plan.waves] == [[[2]]]
    assert ids(plan.ranges) == [[1], [3]]


def test_a_tensor_that_a_file_holds_twice_moves_once() -> None:
    plan = plan_rebuild(slots(1, 2, 1), table(stored(1), stored(2)), set())
    assert ids(plan.waves[0]) == [[1, 2]]
    assert [slot.start for slot in plan.repeats] == [2000]


def test_requests_are_bounded() -> None:
    half = BATCH_BYTES // 2 + 1
    table_of = table(*(stored(n, encoded=half, size=2 * half) for n in (1, 2, 3)))
    plan = plan_rebuild(slots(1, 2, 3, size=2 * half), table_of, set())
    assert [ids(wave) for wave in plan.waves] == [[[1], [2], [3]]]
    plan = plan_rebuild(slots(1, 2, 3, size=half), {}, set())
    assert ids(plan.ranges) == [[1], [2], [3]]


@given(
    tensors=st.lists(st.integers(1, 12), max_size=20),
    bases=st.dictionaries(st.integers(1, 12), st.lists(st.integers(1, 14), max_size=2)),
    local=st.sets(st.integers(1, 14)),
)
def test_every_slot_is_planned_once_and_nothing_is_decoded_before_its_base(
    tensors: list[int], bases: dict[int, list[int]], local: set[int]
) -> None:
    asked = slots(*tensors)
    known = table(*(stored(n, *of) for n, of in bases.items()))
    plan: RebuildPlan = plan_rebuild(asked, known, {name(n) for n in local})
    there = set(local)
    planned = [*plan.copies, *plan.repeats, *(slot for run in plan.ranges for slot in run)]
    for wave in plan.waves:
        flat = [slot for batch in wave for slot in batch]
        for slot in flat:
            assert set(bases[int.from_bytes(slot.tensor, "big")]) <= there
        there |= {int.from_bytes(slot.tensor, "big") for slot in flat}
        planned += flat
    assert sorted(slot.start for slot in planned) == [slot.start for slot in asked]
