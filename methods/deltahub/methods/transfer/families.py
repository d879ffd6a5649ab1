"""Adapters of one task, for which inputs need to be made up only once."""

from collections.abc import Hashable, Sequence
from typing import Final

from deltahub.methods.transfer.kit import TransferKit

# Adapters from whose kits inputs are made up by turns. More of them use these inputs.
MOST_KITS: Final = 16


def show_same_task(first: TransferKit, second: TransferKit) -> bool:
    """Whether two kits show inputs of one kind, in the same form: by the same seeds, or by sketches
    that cannot be told apart. What the adapters answer may differ.
    """
    if first.contract != second.contract:
        return False
    if set(first.inputs) == set(second.inputs):
        return True
    if first.sketch is None or second.sketch is None or first.base != second.base:
        return False
    return first.sketch.is_near(second.sketch)


def leaders(kits: Sequence[tuple[Hashable, TransferKit] | None]) -> list[int | None]:
    """For each adapter the first one of its task, which is itself where it is that; None for an
    adapter that is alone with its task, and for one without a kit.

    kits: (what only adapters with an equal one may share their inputs with, the kit). An adapter
    joins the first leader whose kit shows its task, so that every member is near to its leader.
    """
    found: list[int | None] = []
    for place, told in enumerate(kits):
        near = None if told is None else place
        for leader in dict.fromkeys(found):
            other = None if leader is None else kits[leader]
            if leader is None or told is None or other is None or told[0] != other[0]:
                continue
            if show_same_task(other[1], told[1]):
                near = leader
                break
        found.append(near)
    return [each if found.count(each) > 1 else None for each in found]


def pool_of(
    kits: Sequence[TransferKit | None], found: Sequence[int | None], leader: int
) -> list[int]:
    """The adapters from whose kits the inputs of a task are made up: the first ones with seeds of
    their own. found: as leaders() returns it.
    """
    by_seeds: dict[frozenset[str], int] = {}
    for place, kit in enumerate(kits):
        if kit is not None and found[place] == leader:
            by_seeds.setdefault(frozenset(kit.inputs), place)
    return list(by_seeds.values())[:MOST_KITS]
