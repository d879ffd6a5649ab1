"""Training of an adapter on completions: AdamW, a linear schedule, and clipped gradients."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.models.encoding import (
    IGNORED,
    Encoded,
    device_of,
    padded,
    require_room,
)
from deltahub.methods.transfer.models.generating import Progress, unwatched
from deltahub.methods.transfer.recipe import Recipe

Order = Callable[[int], Sequence[Encoded]]
"""epoch from 0 -> the examples in the order in which they are learnt"""


def shuffled_order(examples: Sequence[Encoded], seed: int) -> Order:
    """Another order in each epoch, the same for the same seed."""

    def order(epoch: int) -> Sequence[Encoded]:
        return random.Random(f"{seed}/{epoch}").sample(examples, len(examples))

    return order


def train(
    model: Any,
    order: Order,
    recipe: Recipe,
    *,
    on_progress: Progress = unwatched,
    after_epoch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train the parameters that may change, which are the active adapter's; the loss of each step.

    after_epoch: called with the number of the epoch, from 1, while the model only predicts.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if not trained:
        raise CannotTransfer("the model has no adapter to train: add one first")
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=0.0)
    n_steps = recipe.epochs * math.ceil(len(order(0)) / recipe.batch_size)
    losses: list[float] = []
    device = device_of(model)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(recipe.seed)
        for epoch in range(recipe.epochs):
            model.train()
            for batch in _batches(order(epoch), recipe.batch_size):
                rate = recipe.learning_rate * rate_factor(len(losses), n_steps, recipe.warmup_share)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss = loss_of(model, batch)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(trained, recipe.clip_norm)
                optimizer.step()
                losses.append(float(loss.detach()))
                if not math.isfinite(losses[-1]):
                    raise CannotTransfer(
                        f"the loss of step {len(losses)} is not finite: lower learning_rate, now"
                        f" {recipe.learning_rate:g}"
                    )
                on_progress(len(losses), n_steps)
            model.eval()
            if after_epoch is not None:
                after_epoch(epoch + 1)
    return losses


def loss_of(model: Any, batch: Sequence[Encoded]) -> torch.Tensor:
    """The mean cross-entropy of the completions' tokens, their ends included; prompts do not
    count.
    """
    require_room(model, max(len(each.ids) for each in batch), "a prompt with its answer")
    device = device_of(model)
    ids, mask = padded([each.ids for each in batch], 0, device)
    labels, _ = padded([each.labels for each in batch], IGNORED, device)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


def rate_factor(step: int, n_steps: int, warmup_share: float) -> float:
    """What the learning rate is multiplied by: up to 1 in the warm-up, then down to 0."""
    n_warmup = math.floor(n_steps * warmup_share)
    if step < n_warmup:
        return (step + 1) / n_warmup
    return (n_steps - step) / (n_steps - n_warmup)


def _batches(examples: Sequence[Encoded], size: int) -> Iterator[Sequence[Encoded]]:
    for start in range(0, len(examples), size):
        yield examples[start : start + size]
