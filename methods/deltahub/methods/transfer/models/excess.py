"""TiTok with models: the excess of tokens by the source, and what the student learns of it.

The equations are in `rungs/titok.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.adapters import TEACHER, using
from deltahub.methods.transfer.models.encoding import (
    IGNORED,
    Encoded,
    encode,
    has_end,
    prompt_ids,
)
from deltahub.methods.transfer.models.generating import Progress, unwatched
from deltahub.methods.transfer.models.scoring import score_tokens
from deltahub.methods.transfer.models.students import Labelled, encode_all
from deltahub.methods.transfer.rungs.titok import (
    KEPT_TEXTS,
    KEPT_TOKENS,
    best_texts,
    best_tokens,
    excess,
    moved_choice,
)

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chosen:
    """A completion, and its characters that are worth learning. spans: of the source's tokens, the
    end of the text as one more character. tokens: which of them are chosen.
    """

    labelled: Labelled
    spans: tuple[tuple[int, int], ...]
    tokens: npt.NDArray[np.bool_]


def choose(
    model: Any,
    tokenizer: Any,
    labelled: Sequence[Labelled],
    contract: Contract,
    *,
    kept_texts: float = KEPT_TEXTS,
    kept_tokens: float = KEPT_TOKENS,
    on_progress: Progress = unwatched,
) -> list[Chosen]:
    """The completions with the highest mean excess, and their best tokens.

    The end of a completion is always chosen, and the share is of the other tokens. Otherwise the
    end would often be the only token of a short answer: a base that does not know when to end
    gives it a high excess.

    model: the source base with its adapter `teacher`, which also wrote the completions.
    """
    examples = encode_all(tokenizer, labelled, contract)
    with using(model, TEACHER):
        expert = score_tokens(model, examples, on_progress=on_progress)
    with using(model, None):
        amateur = score_tokens(model, examples, on_progress=on_progress)
    scores = [
        excess(one.log_probs, other.log_probs) for one, other in zip(expert, amateur, strict=True)
    ]
    return [
        Chosen(
            labelled[i],
            spans_of(tokenizer, examples[i], labelled[i], contract),
            _with_end(scores[i], kept_tokens, ends=_ends(tokenizer, labelled[i], contract)),
        )
        for i in best_texts(scores, kept_texts)
    ]


def encode_chosen(
    tokenizer: Any, chosen: Sequence[Chosen], contract: Contract, *, is_same_tokenizer: bool
) -> list[Encoded]:
    """What the student learns, by the target's tokenizer: the loss covers chosen tokens alone, and
    the end of each completion: a student that never learns it goes on after a right answer.
    """
    found = []
    for each in chosen:
        prompt = contract.prompt_of(each.labelled.text)
        is_whole = each.labelled.is_whole
        example = encode(tokenizer, prompt, each.labelled.completion, contract, is_whole=is_whole)
        kept = each.tokens
        if not is_same_tokenizer:
            spans = spans_of(tokenizer, example, each.labelled, contract)
            kept = moved_choice(each.tokens, each.spans, spans)
        if _ends(tokenizer, each.labelled, contract):
            kept = kept.copy()
            kept[-1] = True
        n = example.n_prompt
        labels = [
            token if is_kept else IGNORED
            for token, is_kept in zip(example.labels[n:], kept.tolist(), strict=True)
        ]
        found.append(replace(example, labels=(*example.labels[:n], *labels)))
    return found


def _ends(tokenizer: Any, labelled: Labelled, contract: Contract) -> bool:
    return has_end(tokenizer, contract, is_whole=labelled.is_whole)


def _with_end(scores: Values, share: float, *, ends: bool) -> npt.NDArray[np.bool_]:
    if not ends:
        return best_tokens(scores, share)
    return np.append(best_tokens(scores[:-1], share), True)


def spans_of(
    tokenizer: Any, example: Encoded, labelled: Labelled, contract: Contract
) -> tuple[tuple[int, int], ...]:
    """The characters of each token of a completion, counted from its beginning; the token that
    ends it has the place after the last one.
    """
    if not tokenizer.is_fast:
        raise CannotTransfer(
            "TiTok needs a tokenizer that tells which characters its tokens are, and this one does"
            " not (it has no tokenizer.json)"
        )
    prompt = contract.prompt_of(labelled.text)
    length = len(labelled.completion)
    wanted = example.ids[example.n_prompt :]
    whole = tokenizer(prompt + labelled.completion, return_offsets_mapping=True)
    shift, offsets = len(prompt), whole.offset_mapping[len(prompt_ids(tokenizer, prompt)) :]
    n_inner = len(wanted) - _ends(tokenizer, labelled, contract)
    if tuple(whole.input_ids[example.n_prompt :])[:n_inner] != wanted[:n_inner]:
        alone = tokenizer(
            labelled.completion, add_special_tokens=False, return_offsets_mapping=True
        )
        shift, offsets = 0, alone.offset_mapping
    found = [(max(start - shift, 0), end - shift) for start, end in offsets if end > start][
        : len(wanted)
    ]
    after = [(length + i, length + i + 1) for i in range(len(wanted) - len(found))]
    return (*found, *after)
