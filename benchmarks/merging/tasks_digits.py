"""Eight domains of the same real digits, and a small network that is fine-tuned to each.

The 1797 images of 8 x 8 pixels are a file of the package scikit-learn; the package itself is not
imported. Weights are F32. Heads are trained with their task and never merged.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.merging.suite import (
    MODEL,
    Scores,
    Suite,
    Task,
    Tensors,
    fixed,
    suite_folder,
    train,
    trained,
)
from benchmarks.pairs.layout import load, save
from benchmarks.pairs.loop import generator_of

NAME = "digits"
KEPT = frozenset({"head.weight", "head.bias"})
# Each takes and returns images of the shape (n, 8, 8).
DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "rot90": lambda images: images.rot90(1, (1, 2)),
    "rot180": lambda images: images.rot90(2, (1, 2)),
    "rot270": lambda images: images.rot90(3, (1, 2)),
    "flip": lambda images: images.flip(2),
    "invert": lambda images: 1 - images,
    "transpose": lambda images: images.transpose(1, 2),
    "roll-4-columns": lambda images: images.roll(4, 2),
    "roll-4-rows": lambda images: images.roll(4, 1),
}


@dataclass(frozen=True)
class Recipe:
    tasks: tuple[str, ...] = tuple(DOMAINS)
    hidden: int = 512
    batch: int = 64
    base_steps: int = 600
    base_learning_rate: float = 1e-3
    steps: int = 200
    learning_rate: float = 3e-4
    n_train: int = 1297
    n_test: int = 500
    noise: float = 0.1  # standard deviation, where a pixel is between 0 and 1


class MissingDigits(Exception):
    """The package with the images is not installed."""


def make_suite(models: Path, seed: int, recipe: Recipe = Recipe()) -> Suite:
    """Trains what is not in the folder `models` yet. A seed has its own weights and test set."""
    folder = suite_folder(models, NAME, recipe, seed)
    base = trained(folder / "base", lambda out: _train_base(recipe, seed, out))
    weights = load(base / MODEL)
    model = _network(recipe, seed)
    tasks = []
    for name in recipe.tasks:
        tuned = trained(
            folder / name, lambda out, name=name: _fine_tune(recipe, seed, name, weights, out)
        )
        images, labels = _split(recipe, seed)[1]
        score = _scorer(model, DOMAINS[name](images), labels)
        tasks.append(Task(name, load(tuned / MODEL), KEPT, score, tuned))
    return Suite(NAME, seed, weights, tasks, base)


def _network(recipe: Recipe, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    width = recipe.hidden
    model = nn.Sequential()
    for i, n_inputs in enumerate((64, width, width)):
        model.add_module(f"linear{i}", nn.Linear(n_inputs, width))
        model.add_module(f"norm{i}", nn.LayerNorm(width))
        model.add_module(f"gelu{i}", nn.GELU())
    model.add_module("head", nn.Linear(width, 10))
    return model


def _train_base(recipe: Recipe, seed: int, out: Path) -> dict[str, float]:
    model = _network(recipe, seed)
    schedule = fixed(recipe.base_steps, recipe.base_learning_rate, seed)
    training_set = _split(recipe, seed)[0]
    report = train(model, _loss(model, training_set, lambda images: images, recipe, seed), schedule)
    save(model.state_dict(), out / MODEL, "F32")
    return report


def _fine_tune(recipe: Recipe, seed: int, name: str, base: Tensors, out: Path) -> dict[str, float]:
    model = _network(recipe, seed)
    model.load_state_dict(base)
    schedule = fixed(recipe.steps, recipe.learning_rate, seed)
    batches = seed + 1000  # others than the base's
    loss = _loss(model, _split(recipe, seed)[0], DOMAINS[name], recipe, batches)
    report = train(model, loss, schedule)
    save(model.state_dict(), out / MODEL, "F32")
    return report


def _loss(
    model: nn.Module,
    training_set: tuple[Tensor, Tensor],
    domain: Callable[[Tensor], Tensor],
    recipe: Recipe,
    seed: int,
) -> Callable[[int], Tensor]:
    images, labels = training_set

    def loss(step: int) -> Tensor:
        generator = generator_of(seed, step)
        chosen = torch.randint(len(images), (recipe.batch,), generator=generator)
        batch = domain(_moved(images[chosen], recipe.noise, generator))
        return functional.cross_entropy(model(batch.flatten(1)), labels[chosen])

    return loss


def _moved(images: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Each image up to one pixel to any side, with noise."""
    n, size, _ = images.shape
    padded = functional.pad(images, (1, 1, 1, 1))
    starts = torch.randint(3, (2, n, 1), generator=generator)
    rows, columns = starts + torch.arange(size)
    moved = padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved + noise * torch.randn(moved.shape, generator=generator)


def _scorer(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[Tensors], Scores]:
    def score(weights: Tensors) -> Scores:
        model.load_state_dict(weights)
        with torch.inference_mode():
            found = model(images.flatten(1)).argmax(1)
        return {"accuracy": (found == labels).double().mean().item()}

    return score


def _split(recipe: Recipe, seed: int) -> list[tuple[Tensor, Tensor]]:
    """(images, labels) of the training set and of the test set."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    ends = (0, recipe.n_train, recipe.n_train + recipe.n_test)
    parts = [order[begin:end] for begin, end in pairwise(ends)]
    return [(images[part], labels[part]) for part in parts]


@cache
def digits() -> tuple[Tensor, Tensor]:
    """(images of 8 x 8 pixels between 0 and 1, labels) of all 1797."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise MissingDigits(
            "the digits are in scikit-learn: `make bench-merge` and `make bench-pissa` install it"
        )
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    return table[:, :64].reshape(-1, 8, 8) / 16, table[:, 64].long()
