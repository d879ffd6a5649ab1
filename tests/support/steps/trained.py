"""Steps of a small model that is really trained, once a process."""

from functools import cache
from itertools import islice

import torch

from benchmarks.steps.training import TINY, Training

Weights = dict[str, torch.Tensor]


@cache
def trained_steps(count: int = 6) -> tuple[Weights, ...]:
    """The weights before the first step and after each: about 1 % of their words change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return tuple(islice(Training(TINY, warm_up=3).steps(2e-6), count))
    finally:
        torch.set_num_threads(threads)


def is_same(pulled: object, pushed: Weights) -> bool:
    """Whether both have the same names, shapes, types and bits."""
    assert isinstance(pulled, dict)
    return pulled.keys() == pushed.keys() and all(
        pulled[name].dtype == each.dtype
        and pulled[name].shape == each.shape
        and torch.equal(_bits(pulled[name]), _bits(each))
        for name, each in pushed.items()
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
