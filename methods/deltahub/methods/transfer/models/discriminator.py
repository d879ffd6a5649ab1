"""The discriminator: an adapter of the source base that says whether an input is of the task.

Trans-LoRA (arXiv 2405.17258), equation 1: it maximizes the mean of log p(yes | t(x)) over the
private inputs and of log p(no | t(x)) over inputs that the base made up. The split, the balance of
the batches and the choice of the epoch are ours, because the paper does not say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.measures.discrimination import (
    DiscriminatorReport,
    balanced,
    measure,
    split,
)
from deltahub.methods.transfer.models.adapters import (
    DISCRIMINATOR,
    add_adapter,
    set_state,
    state_of,
    using,
)
from deltahub.methods.transfer.models.encoding import IGNORED, Encoded, prompt_ids
from deltahub.methods.transfer.models.generating import Progress, unwatched
from deltahub.methods.transfer.models.scoring import last_log_probs
from deltahub.methods.transfer.models.training import train
from deltahub.methods.transfer.prompts import NO, YES, question_of
from deltahub.methods.transfer.recipe import Recipe

BATCH: Final = 16


@dataclass(frozen=True)
class Question:
    """A question up to the token in which its answers differ. yes, no: that token of each.

    Where an answer is one token, this is the whole question. Otherwise the beginning that both
    answers share belongs to it: its log-probability is a part of both sums, and cancels out.
    """

    ids: tuple[int, ...]
    yes: int
    no: int
    has_single_labels: bool

    def labelled(self, is_real: bool) -> Encoded:
        """With its answer, which is all that the loss covers."""
        answer = self.yes if is_real else self.no
        return Encoded((*self.ids, answer), (*([IGNORED] * len(self.ids)), answer))


def question(tokenizer: Any, text: str, name: str) -> Question:
    """The question about one input. CannotTransfer if the tokenizer cannot tell yes from no."""
    asked = question_of(text, name)
    plain = prompt_ids(tokenizer, asked)
    yes, no = prompt_ids(tokenizer, asked + YES), prompt_ids(tokenizer, asked + NO)
    n = 0
    while n < min(len(yes), len(no)) and yes[n] == no[n]:
        n += 1
    if n == min(len(yes), len(no)) or tokenizer.unk_token_id in (yes[n], no[n]):
        raise CannotTransfer(
            f"the tokenizer of the base has no different tokens for {YES.strip()!r} and"
            f" {NO.strip()!r}, so that no discriminator can answer: use a base whose tokenizer has"
        )
    are_single = len(yes) == len(no) == n + 1 and n == len(plain)
    return Question(tuple(yes[:n]), yes[n], no[n], are_single)


def train_discriminator(
    model: Any,
    tokenizer: Any,
    real: Sequence[str],
    synthetic: Sequence[str],
    name: str,
    recipe: Recipe,
    on_progress: Progress = unwatched,
    *,
    is_weak_allowed: bool = False,
) -> tuple[Any, DiscriminatorReport]:
    """The model with the adapter `discriminator` of the best epoch, and how good it is.

    real: private inputs. synthetic: what the base alone made up. name: of the private dataset.
    CannotTransfer if it does no better than guesses, unless is_weak_allowed.
    """
    known = set(real)
    invented = [each for each in dict.fromkeys(synthetic) if each not in known]
    sides = [
        split([question(tokenizer, each, name) for each in dict.fromkeys(texts)], recipe.seed, what)
        for texts, what in ((real, "examples of the task"), (invented, "inputs of the base"))
    ]
    (real_trained, real_held_out), (made_trained, made_held_out) = sides
    model = add_adapter(model, recipe, DISCRIMINATOR)
    learnt = [each.labelled(True) for each in real_trained]
    refused = [each.labelled(False) for each in made_trained]
    best: tuple[DiscriminatorReport, dict[str, torch.Tensor]] | None = None

    def keep_best(epoch: int) -> None:
        nonlocal best
        report = measure(
            _margins(model, real_held_out),
            _margins(model, made_held_out),
            epoch=epoch,
            n_trained=len(learnt) + len(refused),
            has_single_labels=real_held_out[0].has_single_labels,
        )
        if best is None or (report.auc, -report.loss) > (best[0].auc, -best[0].loss):
            best = report, state_of(model, DISCRIMINATOR)

    train(
        model,
        lambda epoch: list(balanced(learnt, refused, recipe.seed + epoch)),
        recipe,
        on_progress=on_progress,
        after_epoch=keep_best,
    )
    if best is None:
        raise AssertionError("a training has at least one epoch")
    report, state = best
    if not is_weak_allowed:
        report.require_better_than_chance()
    set_state(model, DISCRIMINATOR, state)
    return model, report


def margins(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    name: str,
    on_progress: Progress = unwatched,
) -> list[float]:
    """log p(yes) - log p(no) of each input, by the model's adapter `discriminator`."""
    with using(model, DISCRIMINATOR):
        asked = [question(tokenizer, text, name) for text in texts]
        return _margins(model, asked, on_progress)


def _margins(
    model: Any, asked: Sequence[Question], on_progress: Progress = unwatched
) -> list[float]:
    # Questions of similar length share a batch, so that little of it is padding.
    order = sorted(range(len(asked)), key=lambda i: (len(asked[i].ids), i))
    found = [0.0] * len(asked)
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            scores = last_log_probs(model, [asked[i].ids for i in places])
            for i, row in zip(places, scores, strict=True):
                found[i] = float(row[asked[i].yes] - row[asked[i].no])
            on_progress(start + len(places), len(order))
    return found
