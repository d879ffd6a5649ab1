"""What goes into and comes out of a base's modules on given texts."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import torch

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.models.adapters import using
from deltahub.methods.transfer.models.encoding import device_of, inner_of, require_room
from deltahub.methods.transfer.models.generating import Progress, unwatched
from deltahub.methods.transfer.rungs.activation_map import Activations

MOST_POSITIONS: Final = 4_096

Ends = list[dict[int, int]]
"""for each text: where a token ends, in characters -> the token's place"""


def token_ends(tokenizer: Any, texts: Sequence[str]) -> Ends:
    """Where the tokens of each text end. CannotTransfer for a tokenizer that cannot say."""
    if not tokenizer.is_fast:
        raise CannotTransfer(
            "an activation map needs a tokenizer that tells where its tokens end in a text, and"
            " this one does not (it has no tokenizer.json)"
        )
    offsets = tokenizer(list(texts), return_offsets_mapping=True).offset_mapping
    return [{end: i for i, (start, end) in enumerate(text) if end > start} for text in offsets]


def common_ends(first: Ends, second: Ends) -> list[list[int]]:
    """For each text: where a token of both tokenizers ends. There both models have read the same
    characters, so that their states can be compared.
    """
    return [sorted(one.keys() & other.keys()) for one, other in zip(first, second, strict=True)]


def record(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    ends: Sequence[Sequence[int]],
    modules: Collection[str],
    on_progress: Progress = unwatched,
) -> dict[str, Activations]:
    """Inputs and outputs of each module of the base at the tokens that end there.

    ends: for each text, in characters, of `common_ends`. At most MOST_POSITIONS of them are
    recorded. The rows of two models at the same ends belong together. CannotTransfer for a module
    that does not see each token of a text once.
    """
    places = token_ends(tokenizer, texts)
    inner, device = inner_of(model), device_of(model)
    seen: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {
        name: ([], []) for name in modules
    }
    at: list[int] = []
    n_tokens: list[int] = []  # of each text that was shown

    def watch(name: str) -> Any:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            for kept, values in zip(seen[name], (inputs[0], output), strict=True):
                # Some models drop the dimension of the batch, which is one text.
                rows = values.reshape(-1, values.shape[-1])
                if len(rows) != n_tokens[-1] or len(kept) != len(n_tokens) - 1:
                    raise CannotTransfer(
                        f"{name} does not see each token of a text once, so that no activation map"
                        " can be made of it: leave this way out"
                    )
                kept.append(rows[at].double().cpu())

        return hook

    handles = []
    try:
        for name in modules:
            handles.append(_module(inner, name).register_forward_hook(watch(name)))
        left = MOST_POSITIONS
        with using(model, None), torch.inference_mode():
            for i, text in enumerate(texts):
                at[:] = [places[i][end] for end in ends[i]][:left]
                if at:
                    ids = tokenizer(text, return_tensors="pt").input_ids.to(device)
                    require_room(model, ids.shape[1], "a text")
                    n_tokens.append(ids.shape[1])
                    inner(input_ids=ids)
                    left -= len(at)
                on_progress(i + 1, len(texts))
    finally:
        for handle in handles:
            handle.remove()
    if left == MOST_POSITIONS:
        raise CannotTransfer("no text has a place where tokens of both tokenizers end")
    for name, (inputs, _) in seen.items():
        if len(inputs) != len(n_tokens):
            raise CannotTransfer(
                f"{name} was not used for each text, so that no activation map can be made of it:"
                " leave this way out"
            )
    return {
        name: Activations(np.asarray(torch.cat(inputs)), np.asarray(torch.cat(outputs)))
        for name, (inputs, outputs) in seen.items()
    }


def _module(model: Any, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError as exc:
        raise CannotTransfer(f"the base has no module {name}") from exc
