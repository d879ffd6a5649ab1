"""What every method of merging is given: a base and its fine-tunes, each with a measured score."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.pairs.layout import is_made, publish
from benchmarks.pairs.loop import Schedule

Tensors = dict[str, torch.Tensor]
Scores = dict[str, float]  # metric -> share between 0 and 1; the first metric is the main one
MODEL = "model.safetensors"


@dataclass(frozen=True)
class Task:
    """One fine-tune of the base.

    kept: names of tensors that are never merged, such as the head. Methods copy them.
    score: the scores of any weights of the same names and shapes on the task's test set.
    folder: holds model.safetensors; if the suite's models are Llamas, a stock client can load it.
    """

    name: str
    weights: Tensors
    kept: frozenset[str]
    score: Callable[[Tensors], Scores]
    folder: Path


@dataclass(frozen=True)
class Suite:
    """A base and the fine-tunes of one seed."""

    name: str
    seed: int
    base: Tensors
    tasks: list[Task]
    folder: Path  # of the base


def fixed(steps: int, learning_rate: float, seed: int) -> Schedule:
    """A schedule without a decay; the first tenth of the steps is warm-up."""
    return Schedule(steps, learning_rate, weight_decay=0.01, seed=seed, floor=1.0)


def train(
    model: torch.nn.Module, loss_of_step: Callable[[int], torch.Tensor], schedule: Schedule
) -> dict[str, float]:
    """Trains every weight in place. Returns the mean loss of the last tenth of the steps."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
    )
    losses: list[float] = []
    model.train()
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of_step(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return {"last_loss": sum(last) / len(last)}


def suite_folder(models: Path, name: str, recipe: Any, seed: int) -> Path:
    """Another recipe, a dataclass, is another folder."""
    text = json.dumps(dataclasses.asdict(recipe), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return models / f"{name}-{digest}" / f"seed-{seed}"


def trained(final: Path, make: Callable[[Path], Mapping[str, float]]) -> Path:
    """The folder of a model. `make` trains and saves what is not there yet, and returns a report.

    The folder appears whole or not at all.
    """
    if not is_made(final):
        scratch = final.with_name(f".making-{final.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        report = make(scratch)
        publish(scratch, final, report)
        losses = ", ".join(f"{key} {value:.3f}" for key, value in report.items())
        print(f"trained {final.parent.parent.name}/{final.parent.name}/{final.name}: {losses}",
              flush=True)  # fmt: skip
    return final
