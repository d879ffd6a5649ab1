"""Digits: a small network learns the odd digits, and is fine-tuned to the even ones.

The images are those of `make bench-merge`. Weights are F32.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.merging.suite import MODEL, fixed, suite_folder, train, trained
from benchmarks.merging.tasks_digits import digits
from benchmarks.pairs.layout import load, save
from benchmarks.pairs.loop import generator_of
from benchmarks.pissa.task import Scores, Task

NAME = "digits"
_LAYERS = ("first", "second", "head")
_ODD, _EVEN = 1, 0


@dataclass(frozen=True)
class Recipe:
    hidden: int = 256
    batch: int = 64
    base_steps: int = 400
    base_learning_rate: float = 1e-3
    rank: int = 4
    steps: int = 300
    n_test: int = 200  # even digits


def make_task(models: Path, seed: int, recipe: Recipe = Recipe()) -> Task:
    """Trains the base if it is not in the folder `models` yet."""
    folder = suite_folder(models, NAME, recipe, seed)
    base = load(trained(folder / "base", lambda out: _train_base(recipe, seed, out)) / MODEL)
    images, labels = _of_parity(_EVEN, seed)
    training_set = images[recipe.n_test :], labels[recipe.n_test :]

    def make_base() -> nn.Module:
        model = _network(recipe, seed)
        model.load_state_dict(base)
        return model

    def loss(model: nn.Module, step: int) -> Tensor:
        return _loss(model, training_set, recipe.batch, seed + 1000, step)

    def score(model: nn.Module) -> Scores:
        found, wanted = model(images[: recipe.n_test]), labels[: recipe.n_test]
        return {
            "held-out loss": functional.cross_entropy(found, wanted).item(),
            "accuracy": (found.argmax(1) == wanted).double().mean().item(),
        }

    return Task(NAME, seed, _LAYERS, recipe.rank, recipe.steps, make_base, loss, score)


def _network(recipe: Recipe, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sides = (64, recipe.hidden, recipe.hidden, 10)
    model = nn.Sequential()
    for name, n_inputs, n_outputs in zip(_LAYERS, sides, sides[1:], strict=False):
        model.add_module(name, nn.Linear(n_inputs, n_outputs))
        if name != _LAYERS[-1]:
            model.add_module(f"relu_{name}", nn.ReLU())
    return model


def _train_base(recipe: Recipe, seed: int, out: Path) -> dict[str, float]:
    model = _network(recipe, seed)
    training_set = _of_parity(_ODD, seed)
    report = train(
        model,
        lambda step: _loss(model, training_set, recipe.batch, seed, step),
        fixed(recipe.base_steps, recipe.base_learning_rate, seed),
    )
    save(model.state_dict(), out / MODEL, "F32")
    return report


def _loss(
    model: nn.Module, examples: tuple[Tensor, Tensor], batch: int, seed: int, step: int
) -> Tensor:
    images, labels = examples
    chosen = torch.randint(len(images), (batch,), generator=generator_of(seed, step))
    return functional.cross_entropy(model(images[chosen]), labels[chosen])


def _of_parity(parity: int, seed: int) -> tuple[Tensor, Tensor]:
    """(flat images, labels) of the odd or the even digits, in an order of this seed."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order] % 2 == parity]
    return images[order].flatten(1), labels[order]
