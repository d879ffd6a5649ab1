"""Texts as vectors: the mean of a base's last hidden states, of length one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltahub.methods.transfer.models.adapters import using
from deltahub.methods.transfer.models.encoding import device_of, padded, prompt_ids, require_room
from deltahub.methods.transfer.models.generating import BATCH, Progress, unwatched

Values = npt.NDArray[np.float64]


def embed(
    model: Any, tokenizer: Any, texts: Sequence[str], on_progress: Progress = unwatched
) -> Values:
    """One row for each text, by the base without an adapter."""
    rows = [prompt_ids(tokenizer, text) for text in texts]
    device = device_of(model)
    found: list[Values] = []
    with using(model, None), torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            require_room(model, max(map(len, batch)), "an input")
            ids, mask = padded(batch, 0, device)
            states = model(
                input_ids=ids, attention_mask=mask, output_hidden_states=True
            ).hidden_states[-1]
            weights = mask[:, :, None].double()
            means = (states.double() * weights).sum(dim=1) / weights.sum(dim=1)
            found.append(torch.nn.functional.normalize(means, dim=1).cpu().numpy())
            on_progress(min(start + BATCH, len(rows)), len(rows))
    return np.concatenate(found)
