"""Bytes: a small Llama learns the bytes of Python's standard library, and is fine-tuned to another
text, the documentation that pydoc has. Weights are F32.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.merging.suite import MODEL, suite_folder, train, trained
from benchmarks.models.text import Corpus, load_corpus
from benchmarks.pairs.layout import load, save
from benchmarks.pairs.loop import Schedule, generator_of
from benchmarks.pissa.task import Scores, Task

NAME = "bytes"
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LENGTH = 128  # bytes that are predicted, in each example
_HELD_OUT = 0.1  # of the text, at its end


@dataclass(frozen=True)
class Recipe:
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    intermediate: int = 352
    batch: int = 16
    base_steps: int = 450
    base_learning_rate: float = 2e-3
    base_bytes: int = 4_000_000
    rank: int = 4
    steps: int = 150
    n_test: int = 128  # examples


def make_task(models: Path, seed: int, recipe: Recipe = Recipe()) -> Task:
    """Trains the base if it is not in the folder `models` yet."""
    base = load(make_base_folder(models, seed, recipe) / MODEL)
    text = _bytes("documentation", 1_000_000)
    n_train = int(len(text) * (1 - _HELD_OUT))
    training_text = text[:n_train]
    test = _examples(text[n_train:], recipe.n_test, generator_of(seed, -1))

    def make_base() -> nn.Module:
        model = _network(recipe, seed)
        model.load_state_dict(base)
        return model

    def loss(model: nn.Module, step: int) -> Tensor:
        return _loss(model, training_text, recipe.batch, seed + 1000, step)

    def score(model: nn.Module) -> Scores:
        return {"held-out loss": _cross_entropy(model, test).item()}

    return Task(NAME, seed, LINEAR, recipe.rank, recipe.steps, make_base, loss, score)


def make_base_folder(models: Path, seed: int, recipe: Recipe = Recipe()) -> Path:
    """Where the base lies, after training it if it is not there yet."""
    folder = suite_folder(models, NAME, recipe, seed)
    return trained(folder / "base", lambda out: _train_base(recipe, seed, out))


def _network(recipe: Recipe, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=_LENGTH,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def _train_base(recipe: Recipe, seed: int, out: Path) -> dict[str, float]:
    model = _network(recipe, seed)
    text = _bytes("python", recipe.base_bytes)
    report = train(
        model,
        lambda step: _loss(model, text, recipe.batch, seed, step),
        Schedule(recipe.base_steps, recipe.base_learning_rate, weight_decay=0.01, seed=seed),
    )
    save(model.state_dict(), out / MODEL, "F32")
    return report


def _loss(model: nn.Module, text: Tensor, batch: int, seed: int, step: int) -> Tensor:
    return _cross_entropy(model, _examples(text, batch, generator_of(seed, step)))


def _cross_entropy(model: nn.Module, examples: Tensor) -> Tensor:
    """In nats a byte."""
    logits = model(input_ids=examples[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1), examples[:, 1:].flatten())


def _examples(text: Tensor, n: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - _LENGTH, (n, 1), generator=generator)
    return text[starts + torch.arange(_LENGTH + 1)].long()


@cache
def _bytes(corpus: Corpus, n: int) -> Tensor:
    return torch.frombuffer(bytearray(load_corpus(corpus, n).encode()), dtype=torch.uint8)
