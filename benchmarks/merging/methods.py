"""Ways to make one thing of many fine-tunes: METHODS, a table of functions.

A method takes a suite, and returns the weights that each task is then served with and the bytes
that have to be stored for all of them, the base included where it is needed. It computes in doubles
and rounds once, to the dtype of the checkpoints.

To add a method, write such a function and add a line to METHODS. `best_of` is for methods with a
setting, `with_kept` gives each task its own head back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.merging.suite import Suite, Task, Tensors


@dataclass(frozen=True)
class Merged:
    """weights: all tensors of each task, in the suite's order. note: the settings, for people."""

    weights: list[Tensors]
    size_bytes: int
    note: str = ""


Method = Callable[[Suite], Merged]


def individual(suite: Suite) -> Merged:
    """Every fine-tune as it is."""
    weights = [task.weights for task in suite.tasks]
    return Merged(weights, sum(map(size_bytes, weights)))


def base(suite: Suite) -> Merged:
    """The base for every task, with the task's head."""
    return one_model(suite, {name: suite.base[name] for name in mergeable(suite)})


def average(suite: Suite) -> Merged:
    return one_model(suite, added(suite, 1 / len(suite.tasks)))


def task_arithmetic(suite: Suite) -> Merged:
    """Ilharco et al., arXiv 2212.04089: one scale for the sum of all differences."""
    tenths = range(1, 11)
    return best_of(
        suite,
        (one_model(suite, added(suite, i / 10), f"scale {i / 10}") for i in tenths),
    )


def emr(suite: Suite) -> Merged:
    """Huang et al., arXiv 2405.17461, Algorithm 1, with the paper's scale.

    Where the differences sum to zero the negative sign is elected, as in the paper's code.
    """
    n_tasks = len(suite.tasks)
    norms, masked_norms = [0.0] * n_tasks, [0.0] * n_tasks
    parts: list[Tensors] = [{} for _ in suite.tasks]
    unified_bytes = mask_bytes = 0
    for name in mergeable(suite):
        found = differences(suite, name)
        is_positive = found.sum(0) > 0
        unified = torch.where(is_positive, found.amax(0).clamp(min=0), found.amin(0).clamp(max=0))
        masks = torch.where(is_positive, found > 0, found < 0)
        unified_bytes += size_bytes({name: suite.base[name]})
        mask_bytes += n_tasks * bits(unified)
        for i in range(n_tasks):
            parts[i][name] = masks[i] * unified
            norms[i] += found[i].abs().sum().item()
            masked_norms[i] += parts[i][name].abs().sum().item()
    # A task whose mask is empty stays the base, whatever its scale.
    scales = [a / b if b else 0.0 for a, b in zip(norms, masked_norms, strict=True)]
    weights = [
        {name: moved(suite, name, scale * part) for name, part in of_task.items()}
        for scale, of_task in zip(scales, parts, strict=True)
    ]
    stored = size_bytes(suite.base) + unified_bytes + mask_bytes + 8 * n_tasks
    return with_kept(suite, weights, stored)


def bit_delta(suite: Suite) -> Merged:
    """Liu et al., arXiv 2402.10193, without its training of the scales, on every tensor.

    Each difference is its signs times its mean magnitude, one for each tensor.
    """
    weights: list[Tensors] = [{} for _ in suite.tasks]
    stored = size_bytes(suite.base)
    for name in mergeable(suite):
        found = differences(suite, name)
        for i, difference in enumerate(found):
            scale = difference.abs().mean()
            weights[i][name] = moved(suite, name, torch.where(difference < 0, -scale, scale))
            stored += bits(difference) + 4
    return with_kept(suite, weights, stored)


METHODS: dict[str, Method] = {
    "individual": individual,
    "base": base,
    "average": average,
    "task arithmetic": task_arithmetic,
    "EMR": emr,
    "BitDelta": bit_delta,
}


def mergeable(suite: Suite) -> list[str]:
    """The names of the tensors that all tasks have in common."""
    kept = frozenset().union(*(task.kept for task in suite.tasks))
    return [name for name in suite.base if name not in kept]


def differences(suite: Suite, name: str) -> Tensor:
    """Each task's tensor less the base's, in doubles: the shape (tasks, *shape)."""
    origin = suite.base[name].double()
    return torch.stack([task.weights[name].double() - origin for task in suite.tasks])


def moved(suite: Suite, name: str, difference: Tensor) -> Tensor:
    """The base's tensor and a difference, rounded to the base's dtype."""
    origin = suite.base[name]
    return (origin.double() + difference).to(origin.dtype)


def added(suite: Suite, scale: float) -> Tensors:
    """The base and the scaled sum of all differences."""
    return {
        name: moved(suite, name, scale * differences(suite, name).sum(0))
        for name in mergeable(suite)
    }


def one_model(suite: Suite, merged: Tensors, note: str = "") -> Merged:
    """The same weights for all tasks, but for the tensors that a task keeps."""
    return with_kept(suite, [merged] * len(suite.tasks), size_bytes(merged), note)


def with_kept(suite: Suite, merged: list[Tensors], stored: int, note: str = "") -> Merged:
    """stored: the bytes without the tensors that the tasks keep."""
    kept = [{name: task.weights[name] for name in task.kept} for task in suite.tasks]
    weights = [{**ours, **theirs} for ours, theirs in zip(merged, kept, strict=True)]
    return Merged(weights, stored + sum(map(size_bytes, kept)), note)


def best_of(suite: Suite, candidates: Iterable[Merged]) -> Merged:
    """The candidate with the best mean score on the TEST sets, which flatters the method."""
    best = max(candidates, key=lambda merged: mean_score(suite.tasks, merged))
    return Merged(best.weights, best.size_bytes, f"{best.note}, best on the test sets")


def mean_score(tasks: list[Task], merged: Merged) -> float:
    """The mean of the tasks' main metrics."""
    scores = [
        next(iter(task.score(weights).values()))
        for task, weights in zip(tasks, merged.weights, strict=True)
    ]
    return sum(scores) / len(scores)


def size_bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def bits(tensor: Tensor) -> int:
    """The bytes of one bit for each element."""
    return (tensor.numel() + 7) // 8
