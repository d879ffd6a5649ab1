"""One training of an adapter, by the paper's protocol: AdamW without decay, and a cosine to zero.

Gradients are clipped at norm 1, the default of transformers' Trainer. LoRA and PiSSA get the same
batches, rank, alpha and learning rate; only the start differs.
"""

from dataclasses import dataclass
from statistics import mean
from typing import Final

import torch

from benchmarks.pairs.loop import Schedule
from benchmarks.pissa.starts import Start, adapted, factors_of, layers_of
from benchmarks.pissa.task import Task
from deltahub.methods.adapters.factors import Factors

WINDOW: Final = 10  # steps whose training losses are one point of a curve
TRAINING_LOSS: Final = "training loss"


@dataclass(frozen=True)
class Row:
    """A figure of one training. step: how many steps were done; a training loss is the mean of the
    last WINDOW of these.
    """

    task: str
    start: str
    learning_rate: float
    seed: int
    step: int
    metric: str
    value: float


@dataclass(frozen=True)
class Trained:
    """The figures of a training, and the factors of each module before and after it."""

    rows: list[Row]
    initial: dict[str, Factors]
    final: dict[str, Factors]


def train_adapter(task: Task, start: Start, learning_rate: float) -> Trained:
    model = adapted(task.make_base(), task, start)
    layers = layers_of(model)
    initial = {name: factors_of(layer) for name, layer in layers.items()}
    losses = _train(model, task, learning_rate)
    model.eval()
    with torch.inference_mode():
        scores = task.score(model)

    def row(step: int, metric: str, value: float) -> Row:
        return Row(task.name, start, learning_rate, task.seed, step, metric, value)

    ends = range(WINDOW, task.steps + 1, WINDOW)
    rows = [row(end, TRAINING_LOSS, mean(losses[end - WINDOW : end])) for end in ends]
    rows += [row(task.steps, metric, value) for metric, value in scores.items()]
    return Trained(rows, initial, {name: factors_of(layer) for name, layer in layers.items()})


def _train(model: torch.nn.Module, task: Task, learning_rate: float) -> list[float]:
    """The loss of each step."""
    schedule = Schedule(task.steps, learning_rate, weight_decay=0.0, seed=task.seed)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    losses = []
    model.train()
    for step in range(task.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = task.loss(model, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses
