"""New inputs of a task, which a base makes up from a few seeds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from deltahub.methods.transfer.models.encoding import prompt_ids
from deltahub.methods.transfer.models.generating import (
    Progress,
    Sampling,
    continuations,
    unwatched,
)
from deltahub.methods.transfer.prompts import ItemForm, list_prompt, parse_items, shown_seeds

# New items may be somewhat longer than the seeds.
_ROOM: Final = 1.5
_LARGE: Final = 2**31


def invent(
    model: Any,
    tokenizer: Any,
    seeds: Sequence[str],
    call: int,
    *,
    n_lists: int = 8,
    sampling: Sampling | None = None,
    on_progress: Progress = unwatched,
) -> list[str]:
    """New inputs from `n_lists` samples of one list, which shows some of the seeds in an order of
    this call.

    Trans-LoRA (arXiv 2405.17258), figure 7. All lists of a call share their prompt, which is
    therefore read once. The same call with the same seed gives the same inputs.
    """
    sampling = sampling or Sampling()
    shown = shown_seeds(seeds, sampling.seed, call)
    prompt = list_prompt(shown)
    given = len(prompt_ids(tokenizer, prompt))
    found = continuations(
        model,
        tokenizer,
        prompt,
        n_lists,
        max_new_tokens=max(int(given * _ROOM), 16),
        stop=() if ItemForm.of(seeds).has_blank_lines else ("\n\n",),
        sampling=replace(sampling, seed=(sampling.seed * 1_000_003 + call) % _LARGE),
        on_progress=on_progress,
    )
    form = ItemForm.of(seeds)
    return [
        item
        for each in found
        for item in parse_items(each.text, len(shown), form, is_whole=each.is_whole)
    ]
