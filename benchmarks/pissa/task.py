"""What LoRA and PiSSA are compared on: a trained base, and something else to train it to."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

Scores = dict[str, float]  # metric -> value


@dataclass(frozen=True)
class Task:
    """A fine-tuning of one base, of one seed.

    make_base: a new copy of the base, with the weights it was trained to.
    targets: last parts of the names of the modules that get an adapter.
    loss: the training loss of a model at a step. It depends on seed and step alone, so that every
        training of this task sees the same batches.
    score: of a trained model, on examples that no training has seen.
    """

    name: str
    seed: int
    targets: tuple[str, ...]
    rank: int
    steps: int
    make_base: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module, int], torch.Tensor]
    score: Callable[[torch.nn.Module], Scores]

    def target_weights(self) -> dict[str, np.ndarray]:
        """The base's weights that get an adapter, outputs x inputs, by their modules' names."""
        weights = {
            name.removesuffix(".weight"): value.numpy()
            for name, value in self.make_base().state_dict().items()
            if name.endswith(".weight")
        }
        return {
            name: value
            for name, value in weights.items()
            if name.rpartition(".")[2] in self.targets
        }
