"""What a model finds likely, without letting it write: one forward pass of each text."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from deltahub.methods.transfer.measures.agreement import Fit
from deltahub.methods.transfer.models.encoding import (
    IGNORED,
    Encoded,
    device_of,
    inner_of,
    padded,
    require_room,
)
from deltahub.methods.transfer.models.generating import Progress, unwatched

Values = npt.NDArray[np.float64]
BATCH: Final = 8


@dataclass(frozen=True)
class TokenScores:
    """Of each token of one completion: log p after all tokens before it, and whether the model
    would have chosen it.
    """

    log_probs: Values
    is_greedy: npt.NDArray[np.bool_]


def score_tokens(
    model: Any,
    examples: Sequence[Encoded],
    *,
    batch_size: int = BATCH,
    on_progress: Progress = unwatched,
) -> list[TokenScores]:
    """The scores of the completion of each example."""
    found: list[TokenScores] = []
    device = device_of(model)
    with torch.inference_mode():
        for start in range(0, len(examples), batch_size):
            batch = examples[start : start + batch_size]
            require_room(model, max(len(each.ids) for each in batch), "a prompt with its answer")
            ids, mask = padded([each.ids for each in batch], 0, device)
            logits = model(input_ids=ids, attention_mask=mask).logits
            for row, example in zip(logits, batch, strict=True):
                found.append(_scores(row, example))
            on_progress(len(found), len(examples))
    return found


def fit_of(scores: Sequence[TokenScores]) -> Fit:
    """How likely all completions are together."""
    n = sum(len(each.log_probs) for each in scores)
    total = sum(float(each.log_probs.sum()) for each in scores)
    return Fit(
        n_tokens=n,
        n_greedy=sum(int(each.is_greedy.sum()) for each in scores),
        nll=-total / n if n else 0.0,
    )


def last_log_probs(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """log p of each token after each row: rows x vocabulary."""
    require_room(model, max(map(len, rows)) + 1, "a question to the discriminator")
    device = device_of(model)
    ids, mask = padded(rows, 0, device)
    ends = torch.tensor([len(row) - 1 for row in rows], device=device)
    given: dict[str, Any] = {}
    places = ends
    if "logits_to_keep" in inspect.signature(inner_of(model).forward).parameters:
        # The logits of a long batch over a large vocabulary would take gigabytes.
        kept, places = torch.unique(ends, return_inverse=True)
        given["logits_to_keep"] = kept
    logits = model(input_ids=ids, attention_mask=mask, **given).logits
    last = logits[torch.arange(len(rows), device=device), places]
    return torch.log_softmax(last.float(), dim=-1)


def _scores(logits: torch.Tensor, example: Encoded) -> TokenScores:
    labels = torch.tensor(example.labels, device=logits.device)
    places = (labels != IGNORED).nonzero()[:, 0]
    learnt = labels[places]
    # The logits at a place are of the token after it.
    before = torch.log_softmax(logits[places - 1].float(), dim=-1)
    chosen = before.gather(1, learnt[:, None])[:, 0]
    return TokenScores(
        chosen.double().cpu().numpy(), (before.argmax(dim=-1) == learnt).cpu().numpy()
    )
