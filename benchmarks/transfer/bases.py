"""The bases: an old one, the same one trained longer, and a larger one that was trained apart."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.merging.suite import MODEL, suite_folder, train, trained
from benchmarks.pairs.layout import load, save
from benchmarks.pairs.loop import Schedule
from benchmarks.transfer.world import END, Reading, document, tokenizer
from deltahub.methods.transfer.models.encoding import IGNORED, padded

BaseName = Literal["old", "longer", "apart"]
TARGETS: Final[tuple[BaseName, ...]] = ("longer", "apart")


@dataclass(frozen=True)
class Recipe:
    """hidden, layers: of the old base and of the one that is trained longer."""

    hidden: int = 64
    layers: int = 2
    apart_hidden: int = 96
    apart_layers: int = 3
    heads: int = 4
    batch: int = 32
    steps: int = 600
    longer_steps: int = 300  # more than the old base's
    learning_rate: float = 3e-3
    longer_learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class Base:
    name: BaseName
    weights: dict[str, Tensor]
    recipe: Recipe

    @property
    def reading(self) -> Reading:
        return "characters" if self.name == "apart" else "words"

    @property
    def tokenizer(self) -> Any:
        return tokenizer(self.reading)

    def model(self) -> Any:
        """A fresh copy."""
        found = _network(self.name, self.recipe)
        found.load_state_dict(self.weights)
        found.eval()  # type: ignore[no-untyped-call]
        return found


def make_base(models: Path, name: BaseName, recipe: Recipe = Recipe()) -> Base:
    """Trains the base if it is not in the folder `models` yet."""
    folder = suite_folder(models, "base", recipe, recipe.seed)
    found = trained(folder / name, lambda out: _train(models, name, recipe, out))
    return Base(name, load(found / MODEL), recipe)


def _train(models: Path, name: BaseName, recipe: Recipe, out: Path) -> dict[str, float]:
    torch.manual_seed(recipe.seed + (1000 if name == "apart" else 0))
    model = _network(name, recipe)
    steps, rate = recipe.steps, recipe.learning_rate
    if name == "longer":
        model.load_state_dict(make_base(models, "old", recipe).weights)
        steps, rate = recipe.longer_steps, recipe.longer_learning_rate
    texts = _documents(f"{recipe.seed}/{name}")
    reading: Reading = "characters" if name == "apart" else "words"

    def loss(step: int) -> Tensor:
        rows = [next(texts) for _ in range(recipe.batch)]
        return _loss(model, reading, rows)

    report = train(model, loss, Schedule(steps, rate, weight_decay=0.01, seed=recipe.seed))
    save(model.state_dict(), out / MODEL, "F32")
    return report


def _network(name: BaseName, recipe: Recipe) -> LlamaForCausalLM:
    is_apart = name == "apart"
    hidden = recipe.apart_hidden if is_apart else recipe.hidden
    reading = tokenizer("characters" if is_apart else "words")
    config = LlamaConfig(
        vocab_size=len(reading),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=recipe.apart_layers if is_apart else recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=reading.pad_token_id,
        bos_token_id=None,
        eos_token_id=reading.eos_token_id,
    )
    return LlamaForCausalLM(config)


def _documents(seed: str) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield document(rng) + END


def _loss(model: Any, reading: Reading, texts: list[str]) -> Tensor:
    ids, mask = padded(tokenizer(reading)(texts).input_ids, 0, "cpu")
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    wanted = ids.masked_fill(mask == 0, IGNORED)[:, 1:]
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
