"""Sums as steps record them."""

from collections.abc import Mapping

from deltahub.methods.merging.emr import Sums


def sums_of_json(
    counts: Mapping[str, int], sums: Mapping[str, list[list[float]]], number: int
) -> dict[str, Sums]:
    """The sums of task `number` over each merged tensor; those that no task changed are zero.

    counts: tensor -> elements. sums: tensor -> task -> as Sums.to_list.
    """
    nothing = [0.0] * 7
    return {
        name: Sums.of_list(count, sums[name][number] if name in sums else nothing)
        for name, count in counts.items()
    }
