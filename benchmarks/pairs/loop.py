"""One training loop that can be killed at any step and gives the same weights all the same.

Batches and dropout depend on (seed, step) alone, so going on from a saved state repeats nothing
and skips nothing.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

SAVE_EVERY_S = 120.0
Loss = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Schedule:
    """floor: the learning rate at the end, as a share of the peak; warm-up is a tenth."""

    steps: int
    learning_rate: float
    weight_decay: float
    seed: int
    beta2: float = 0.999
    floor: float = 0.0
    is_bf16: bool = False  # weights, gradients and optimizer state in BF16

    def rate(self, step: int) -> float:
        warm_up = max(1, self.steps // 10)
        progress = max(0, step - warm_up) / max(1, self.steps - warm_up)
        middle, swing = (1 + self.floor) / 2, (1 - self.floor) / 2
        cosine = middle + swing * math.cos(math.pi * progress)
        return self.learning_rate * min(1.0, (step + 1) / warm_up) * cosine


@dataclass
class Progress:
    """What a training has to tell: one loss a step, and the CPU seconds of all its starts."""

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0  # CPU time; one thread

    def report(self) -> dict[str, Any]:
        tenth = max(1, len(self.losses) // 10)
        return {
            "steps": len(self.losses),
            "first_loss": sum(self.losses[:tenth]) / tenth,
            "last_loss": sum(self.losses[-tenth:]) / tenth,
            "cpu_seconds": round(self.seconds, 1),
        }


def generator_of(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def train(
    model: torch.nn.Module,
    loss_of_step: Loss,
    schedule: Schedule,
    state: Path,
    label: str,
    after_step: Callable[[int], None] = lambda step: None,
) -> Progress:
    """Trains in place; begins at the state's step if there is one. after_step may run twice."""
    weights = _Weights(model, schedule.is_bf16)
    optimizer = torch.optim.AdamW(
        _groups(model, weights.trained, schedule.weight_decay),
        lr=schedule.learning_rate,
        betas=(0.9, schedule.beta2),
    )
    progress = Progress()
    if state.is_file():
        saved = torch.load(state, weights_only=True)
        weights.restore(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])
        progress = Progress(saved["losses"], saved["seconds"])
        _say(label, schedule, progress, "goes on")
    saved_at = time.monotonic()
    model.train()
    for step in range(len(progress.losses), schedule.steps):
        began = time.process_time()
        torch.manual_seed(schedule.seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of_step(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.computed, 1.0)
        weights.before_step()
        optimizer.step()
        weights.after_step()
        progress.losses.append(loss.item())
        progress.seconds += time.process_time() - began
        after_step(step + 1)
        if (step + 1) % max(1, schedule.steps // 8) == 0:
            _say(label, schedule, progress, "at")
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            _save(state, weights, optimizer, progress)
            saved_at = time.monotonic()
    model.eval()
    return progress


class _Weights:
    """The trained parameters, as the model computes with them and as the optimizer sees them.

    In BF16 training the optimizer owns BF16 weights and the model computes with their F32 values:
    what is stored is as in pure BF16, and a CPU without BF16 arithmetic is no slower than in F32.
    """

    def __init__(self, model: torch.nn.Module, is_bf16: bool) -> None:
        self.computed = [p for p in model.parameters() if p.requires_grad]
        self.is_bf16 = is_bf16
        if is_bf16:
            self.trained = [
                torch.nn.Parameter(p.detach().to(torch.bfloat16)) for p in self.computed
            ]
            self.after_step()
        else:
            self.trained = self.computed

    def before_step(self) -> None:
        if self.is_bf16:
            for computed, trained in zip(self.computed, self.trained, strict=True):
                assert computed.grad is not None
                trained.grad = computed.grad.to(torch.bfloat16)

    def after_step(self) -> None:
        with torch.no_grad():
            for computed, trained in zip(self.computed, self.trained, strict=True):
                if self.is_bf16:
                    computed.copy_(trained)
                computed.grad = None

    def restore(self, saved: Iterable[torch.Tensor]) -> None:
        with torch.no_grad():
            for trained, value in zip(self.trained, saved, strict=True):
                trained.copy_(value)
        self.after_step()


def _groups(
    model: torch.nn.Module, trained: list[torch.nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    """Biases and norms do not decay, as in the trainers that most fine-tunes come from."""
    computed = [p for p in model.parameters() if p.requires_grad]
    pairs = list(zip(computed, trained, strict=True))
    return [
        {"params": [t for c, t in pairs if c.ndim > 1], "weight_decay": weight_decay},
        {"params": [t for c, t in pairs if c.ndim <= 1], "weight_decay": 0.0},
    ]


def _save(
    state: Path, weights: _Weights, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    scratch = state.with_suffix(".new")
    torch.save(
        {
            "weights": [p.detach() for p in weights.trained],
            "optimizer": optimizer.state_dict(),
            "losses": progress.losses,
            "seconds": progress.seconds,
        },
        scratch,
    )
    os.replace(scratch, state)


def _say(label: str, schedule: Schedule, progress: Progress, verb: str) -> None:
    done = len(progress.losses)
    loss = f", loss {progress.losses[-1]:.3f}" if progress.losses else ""
    print(
        f"  {label}: {verb} step {done} of {schedule.steps}{loss}, {progress.seconds:.0f} s",
        flush=True,
    )
