"""Teacher and student: the old adapter's completions, and a new adapter that learns them.

Trans-LoRA (arXiv 2405.17258), algorithm 1: the student minimizes the cross-entropy of the greedy
completions of source base and adapter. Only text passes from one model to the other, so that their
tokenizers and kinds of adapters may differ.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.measures.agreement import Fit
from deltahub.methods.transfer.models.adapters import (
    STUDENT,
    TEACHER,
    add_adapter,
    set_state,
    using,
)
from deltahub.methods.transfer.models.encoding import Encoded, encode
from deltahub.methods.transfer.models.generating import BATCH, Progress, complete, unwatched
from deltahub.methods.transfer.models.scoring import fit_of, score_tokens
from deltahub.methods.transfer.models.training import shuffled_order, train
from deltahub.methods.transfer.recipe import Recipe

Item = TypeVar("Item")

HELD_OUT_SHARE: Final = 0.2


@dataclass(frozen=True)
class Labelled:
    """An input with a model's completion. is_whole: the model ended it, so that its end is learnt.
    One that was cut at the contract's last token has no end that a student should learn.
    """

    text: str
    completion: str
    is_whole: bool = True


def label(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    contract: Contract,
    *,
    adapter: str | None = TEACHER,
    batch_size: int = BATCH,
    on_progress: Progress = unwatched,
) -> list[Labelled]:
    """Each input with its greedy completion by an adapter of the model; by the base for None."""
    prompts = [contract.prompt_of(text) for text in texts]
    with using(model, adapter):
        found = complete(
            model,
            tokenizer,
            prompts,
            contract,
            batch_size=batch_size,
            on_progress=on_progress,
        )
    return [
        Labelled(text, each.text, each.is_whole) for text, each in zip(texts, found, strict=True)
    ]


def hold_out(items: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """(to be learnt, to be measured on), 80 to 20, and the same for the same seed.

    CannotTransfer for fewer than five: nothing could be said of the result.
    """
    if len(items) < 5:
        raise CannotTransfer(
            f"{len(items)} inputs are too few to train on some and measure on others: at least 5"
            " are needed. Raise the budget, or make a kit with more seeds"
        )
    order = random.Random(seed).sample(items, len(items))
    n = max(1, round(len(order) * HELD_OUT_SHARE))
    return order[n:], order[:n]


def encode_all(tokenizer: Any, labelled: Sequence[Labelled], contract: Contract) -> list[Encoded]:
    """What a student learns of each input."""
    return [
        encode(
            tokenizer,
            contract.prompt_of(each.text),
            each.completion,
            contract,
            is_whole=each.is_whole,
        )
        for each in labelled
    ]


def train_student(
    model: Any,
    examples: Sequence[Encoded],
    recipe: Recipe,
    *,
    warm_start: Mapping[str, torch.Tensor] | None = None,
    on_progress: Progress = unwatched,
) -> tuple[Any, list[float]]:
    """The new base with a trained adapter `student`, and the loss of each step.

    warm_start: the tensors of an adapter that a cheaper way made, to begin with.
    """
    examples = [each for each in examples if each.n_prompt < len(each.ids)]
    if not examples:
        raise CannotTransfer("there is nothing to learn: no input was accepted and answered")
    model = add_adapter(model, recipe, STUDENT)
    if warm_start is not None:
        set_state(model, STUDENT, warm_start)
    losses = train(model, shuffled_order(examples, recipe.seed), recipe, on_progress=on_progress)
    return model, losses


def fit(
    model: Any,
    examples: Sequence[Encoded],
    *,
    adapter: str | None = STUDENT,
    on_progress: Progress = unwatched,
) -> Fit:
    """How likely the teacher's completions are for an adapter of the model, or for its base."""
    with using(model, adapter):
        return fit_of(score_tokens(model, examples, on_progress=on_progress))
