"""Texts as tokens: prompts, completions with what the loss covers, and padded batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.contract import Contract

# What the loss of torch leaves out.
IGNORED: Final = -100


@dataclass(frozen=True)
class Encoded:
    """Tokens of a prompt and its completion. labels: IGNORED for the prompt, else the token."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def n_prompt(self) -> int:
        """Tokens before the completion."""
        return next((i for i, each in enumerate(self.labels) if each != IGNORED), len(self.labels))


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The tokens of a prompt, with the beginning that the tokenizer adds and without its end."""
    ids: list[int] = tokenizer(prompt).input_ids
    while ids and tokenizer.eos_token_id is not None and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    if not ids:
        # A model needs something to go on from.
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else end_id(tokenizer)
        return [] if start is None else [start]
    return ids


def encode(
    tokenizer: Any, prompt: str, completion: str, contract: Contract, *, is_whole: bool = True
) -> Encoded:
    """A prompt and its completion to be learnt, with the token that ends it unless it was cut.

    The tokens of the prompt are those that a model is given when it answers, because a tokenizer
    may join the last letters of a prompt with the first ones of its completion. Where it has no
    token for the end of a text, the contract's first end is learnt in its place.
    """
    given = prompt_ids(tokenizer, prompt)
    end = end_id(tokenizer) if is_whole else None
    if has_end(tokenizer, contract, is_whole=is_whole) and end is None:
        completion += contract.stop[0]
    whole = prompt_ids(tokenizer, prompt + completion) if completion else given
    if whole[: len(given)] == given:
        learnt = whole[len(given) :]
    else:
        learnt = list(tokenizer(completion, add_special_tokens=False).input_ids)
    if end is not None:
        learnt = [*learnt, end]
    return Encoded((*given, *learnt), (*([IGNORED] * len(given)), *learnt))


def has_end(tokenizer: Any, contract: Contract, *, is_whole: bool) -> bool:
    """Whether the last token of an encoded completion is one that ends it."""
    return is_whole and (end_id(tokenizer) is not None or bool(contract.stop))


def end_id(tokenizer: Any) -> int | None:
    """The token that ends a text."""
    found: int | None = tokenizer.eos_token_id
    return found


def pad_id(tokenizer: Any) -> int:
    """A token to fill rows up with, which nothing reads."""
    found: int = tokenizer.pad_token_id or tokenizer.eos_token_id or 0
    return found


def longest_input(model: Any) -> int | None:
    """Tokens that a model can read; None if its configuration sets no limit."""
    found: int | None = getattr(model.config, "max_position_embeddings", None)
    return found


def fits(model: Any, tokenizer: Any, text: str, contract: Contract) -> bool:
    """Whether a model can read an input and still write its longest completion.

    A job leaves out a made-up input that does not fit, because one such input would end the job.
    """
    most = longest_input(model)
    n = len(prompt_ids(tokenizer, contract.prompt_of(text))) + contract.max_new_tokens
    return most is None or n <= most


def require_room(model: Any, n_tokens: int, what: str) -> None:
    """CannotTransfer if a text does not fit into what the model can read."""
    most = longest_input(model)
    if most is not None and n_tokens > most:
        raise CannotTransfer(
            f"{what} takes {n_tokens} tokens, and the model reads at most {most}: use shorter"
            " inputs, fewer seeds, or a smaller max_new_tokens"
        )


def padded(
    rows: Sequence[Sequence[int]], fill: int, device: Any, *, left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, mask) of rows of different lengths, filled up on one side."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), fill, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids.to(device), mask.to(device)


def device_of(model: Any) -> torch.device:
    """Where a model's inputs belong."""
    found: torch.device = next(iter(model.parameters())).device
    return found


def inner_of(model: Any) -> Any:
    """The model of transformers itself, with the layers of its adapters in it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
