"""The Llamas: one that is trained on Python's standard library, with a fine-tune and text that
neither has seen; and a larger one whose weights are drawn, for memory and speed.

A training that was killed goes on from its last saved state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from benchmarks.merging.suite import suite_folder, trained
from benchmarks.models.text import Corpus, load_corpus
from benchmarks.models.training import train_tokenizer
from benchmarks.pairs.loop import Schedule, generator_of, train
from benchmarks.pairs.models import build_llama
from benchmarks.pairs.recipes import LlamaBase

NAME: Final = "llama"
_LARGE: Final = "large"
_TOKENIZER: Final = "tokenizer.json"
_HELD_OUT: Final = 0.05  # of the text, at its end


@dataclass(frozen=True)
class Recipe:
    """base: the Llama; its text_bytes are those of all text, trained on and held out.

    tune_steps, tune_rate: of the fine-tune to the documentation, which starts at the BF16 base.
    n_test: windows of held-out text.
    """

    base: LlamaBase = field(
        default_factory=lambda: LlamaBase(
            name=NAME,
            kind="llama",
            corpus="python",
            text_bytes=8_000_000,
            hidden=256,
            layers=4,
            heads=4,
            kv_heads=4,
            intermediate=704,
            vocabulary=2048,
            steps=1000,
            batch=8,
            sequence=128,
            learning_rate=2e-3,
            seed=0,
        )
    )
    tune_steps: int = 40
    tune_rate: float = 1e-5
    n_test: int = 1024


@dataclass(frozen=True)
class Sizes:
    """Of the large Llama. Its weights are normal, of standard deviation 0.02: their exponents have
    the entropy of trained ones, and to train it would take days.
    """

    hidden: int = 1024
    layers: int = 6
    heads: int = 16
    intermediate: int = 2816
    vocabulary: int = 2048


@dataclass(frozen=True)
class TrainedLlama:
    """Folders of BF16 models, as `save_pretrained` writes them, and held-out windows of tokens."""

    base: Path
    fine_tune: Path
    test: Tensor

    def load(self) -> LlamaForCausalLM:
        return load_model(self.base)


def make_llama(models: Path, recipe: Recipe) -> TrainedLlama:
    """Trains what is not in the folder `models` yet."""
    folder = suite_folder(models, NAME, recipe.base, recipe.base.seed)
    base = trained(folder / "base", partial(_train_base, recipe.base, folder / "base.state"))
    tune = folder / f"tune-{recipe.tune_steps}-{recipe.tune_rate:g}"
    trained(tune, partial(_fine_tune, recipe, base, tune.with_name(f"{tune.name}.state")))
    tokenizer = Tokenizer.from_file(str(base / _TOKENIZER))
    tokens = _encoded(tokenizer, _halves(recipe.base)[1])
    length = recipe.base.sequence + 1
    n = min(recipe.n_test, len(tokens) // length)
    # Evenly spread, so that the test is of many files.
    starts = torch.linspace(0, len(tokens) - length, n).long()[:, None]
    return TrainedLlama(base, tune, tokens[starts + torch.arange(length)])


def make_large(models: Path, sizes: Sizes) -> Path:
    """The folder of the BF16 model, which is made if it is not in the folder `models` yet."""
    return trained(suite_folder(models, _LARGE, sizes, 0) / "base", partial(_draw, sizes))


def load_model(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def perplexity(model: torch.nn.Module, test: Tensor, batch: int = 16) -> float:
    """exp of the mean cross entropy of each window's tokens but the first."""
    lost = 0.0
    with torch.inference_mode():
        for windows in test.split(batch):
            logits: Tensor = model(input_ids=windows[:, :-1]).logits
            lost += functional.cross_entropy(
                logits.float().flatten(0, 1), windows[:, 1:].flatten(), reduction="sum"
            ).item()
    return float(torch.tensor(lost / test[:, 1:].numel(), dtype=torch.float64).exp())


def _train_base(base: LlamaBase, state: Path, out: Path) -> dict[str, float]:
    text, _ = _halves(base)
    tokenizer = train_tokenizer(text, base.vocabulary).backend_tokenizer
    tokenizer.save(str(out / _TOKENIZER))
    model = build_llama(base)
    schedule = Schedule(base.steps, base.learning_rate, 0.01, base.seed, beta2=0.95, floor=0.1)
    batch_of = _batches(_encoded(tokenizer, text), base.batch, base.sequence, base.seed)
    return _train(model, batch_of, schedule, state, out)


def _fine_tune(recipe: Recipe, base: Path, state: Path, out: Path) -> dict[str, float]:
    tokenizer = Tokenizer.from_file(str(base / _TOKENIZER))
    tokens = _encoded(tokenizer, _text("documentation", recipe.base.text_bytes))
    seed = recipe.base.seed + 1
    batch_of = _batches(tokens, recipe.base.batch, recipe.base.sequence, seed)
    schedule = Schedule(recipe.tune_steps, recipe.tune_rate, 0.01, seed)
    return _train(load_model(base).float(), batch_of, schedule, state, out)


def _draw(sizes: Sizes, out: Path) -> dict[str, float]:
    untrained = replace(
        Recipe().base,
        name=_LARGE,
        hidden=sizes.hidden,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        intermediate=sizes.intermediate,
        vocabulary=sizes.vocabulary,
    )
    model = build_llama(untrained)
    model.to(torch.bfloat16).save_pretrained(out)
    return {"million weights": sum(each.numel() for each in model.parameters()) / 1e6}


def _train(
    model: Any, batch_of: Callable[[int], Tensor], schedule: Schedule, state: Path, out: Path
) -> dict[str, float]:
    """Trains in F32 and saves in BF16."""
    torch.set_num_threads(1)

    def loss(step: int) -> Tensor:
        windows = batch_of(step)
        found: Tensor = model(input_ids=windows, labels=windows).loss
        return found

    progress = train(model, loss, schedule, state, out.name.removeprefix(".making-"))
    model.to(torch.bfloat16).save_pretrained(out)
    state.unlink(missing_ok=True)
    report = progress.report()
    return {name: float(report[name]) for name in ("last_loss", "cpu_seconds")}


def _batches(tokens: Tensor, batch: int, sequence: int, seed: int) -> Callable[[int], Tensor]:
    offsets = torch.arange(sequence)

    def batch_of(step: int) -> Tensor:
        generator = generator_of(seed, step)
        starts = torch.randint(len(tokens) - sequence, (batch, 1), generator=generator)
        return tokens[starts + offsets]

    return batch_of


def _halves(base: LlamaBase) -> tuple[str, str]:
    """(text to train on, held-out text), of the same kind and of other files."""
    text = _text("python", base.text_bytes)
    n = int(len(text) * (1 - _HELD_OUT))
    return text[:n], text[n:]


def _encoded(tokenizer: Tokenizer, text: str) -> Tensor:
    # In pieces: the tokenizer takes quadratic time on one string of many megabytes.
    pieces = [text[i : i + 100_000] for i in range(0, len(text), 100_000)]
    encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
    return torch.tensor([token for piece in encoded for token in piece.ids])


@cache
def _text(corpus: Corpus, n: int) -> str:
    return load_corpus(corpus, n)
