"""Eight operations on sequences of letters, and a small Llama that is fine-tuned to each.

The base is trained on a mixture: each operation has a token, and most examples of it follow one
rule, the others a second one. A fine-tune is trained on the second rule of one operation, so it
brings out what the base half knows, and stays near it. Models are saved in BF16 by save_pretrained.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.merging.suite import (
    MODEL,
    Scores,
    Suite,
    Task,
    Tensors,
    suite_folder,
    train,
    trained,
)
from benchmarks.pairs.layout import load
from benchmarks.pairs.loop import Schedule

NAME = "llama"
LETTERS = 16  # the tokens from 0
LENGTH = 8  # letters of a question
Letters = list[int]
Rule = Callable[[Letters], Letters]


@dataclass(frozen=True)
class Operation:
    """The rule of most examples in the base's mixture, and the rule that is fine-tuned to."""

    common: Rule
    tuned: Rule


OPERATIONS: dict[str, Operation] = {
    "reverse": Operation(lambda x: x[::-1], lambda x: _shifted(x[::-1], 5)),
    "sort": Operation(sorted, lambda x: sorted(x, reverse=True)),
    "shift": Operation(lambda x: _shifted(x, 3), lambda x: _shifted(x, 7)),
    "copy-twice": Operation(lambda x: x + x, lambda x: x + x[::-1]),
    "every-second": Operation(lambda x: x[::2], lambda x: x[1::2]),
    "complement": Operation(lambda x: _complement(x), lambda x: _complement(x[::-1])),
    "rotate": Operation(lambda x: x[3:] + x[:3], lambda x: x[5:] + x[:5]),
    "de-duplicate": Operation(lambda x: list(dict.fromkeys(x)), lambda x: sorted(set(x))),
}
_TOKEN_OF = {name: LETTERS + i for i, name in enumerate(OPERATIONS)}
_ANSWER = LETTERS + len(OPERATIONS)  # the token between question and answer
END = _ANSWER + 1
_VOCABULARY = 32
_IGNORED = -100

transformers_logging.disable_progress_bar()


@dataclass(frozen=True)
class Recipe:
    tasks: tuple[str, ...] = tuple(OPERATIONS)
    hidden: int = 128
    layers: int = 5
    heads: int = 4
    intermediate: int = 352
    tuned_share: float = 0.3  # of the base's examples
    base_batch: int = 64
    base_steps: int = 600
    base_learning_rate: float = 1e-3
    batch: int = 32
    steps: int = 100
    learning_rate: float = 2e-4
    n_test: int = 200


@dataclass(frozen=True)
class Batch:
    """tokens, labels: shape (examples, longest); a label is _IGNORED outside of the answer."""

    tokens: Tensor
    labels: Tensor


def make_suite(models: Path, seed: int, recipe: Recipe = Recipe()) -> Suite:
    """Trains what is not in the folder `models` yet. A seed has its own weights and test sets."""
    folder = suite_folder(models, NAME, recipe, seed)
    base = trained(folder / "base", lambda out: _train_base(recipe, seed, out))
    weights = load(base / MODEL)
    model = _network(recipe, seed)
    tasks = []
    for name in recipe.tasks:
        tuned = trained(
            folder / name, lambda out, name=name: _fine_tune(recipe, seed, name, weights, out)
        )
        # 16 ** 8 questions are possible: training has met less than one in 50,000 of them.
        test = _batch(_random(seed, -1), [name] * recipe.n_test, tuned_share=1)
        score = _scorer(model, test)
        tasks.append(Task(name, load(tuned / MODEL), frozenset(), score, tuned))
    return Suite(NAME, seed, weights, tasks, base)


def _network(recipe: Recipe, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    return LlamaForCausalLM(config)


def _train_base(recipe: Recipe, seed: int, out: Path) -> dict[str, float]:
    model = _network(recipe, seed)

    def loss(step: int) -> Tensor:
        generator = _random(seed, step)
        names = generator.choices(recipe.tasks, k=recipe.base_batch)
        return _loss(model, _batch(generator, names, recipe.tuned_share))

    report = train(model, loss, _schedule(recipe.base_steps, recipe.base_learning_rate, seed))
    model.to(torch.bfloat16).save_pretrained(out)
    return report


def _fine_tune(recipe: Recipe, seed: int, name: str, base: Tensors, out: Path) -> dict[str, float]:
    """Starts from the base as it was saved, as anybody's fine-tune of a published model does."""
    model = _network(recipe, seed)
    model.load_state_dict(base)

    def loss(step: int) -> Tensor:
        generator = _random(seed + 1000, step)  # other examples than the base's
        return _loss(model, _batch(generator, [name] * recipe.batch, tuned_share=1))

    report = train(model, loss, _schedule(recipe.steps, recipe.learning_rate, seed))
    model.to(torch.bfloat16).save_pretrained(out)
    return report


def _schedule(steps: int, learning_rate: float, seed: int) -> Schedule:
    return Schedule(steps, learning_rate, weight_decay=0.01, seed=seed, floor=0.1)


def _random(seed: int, step: int) -> random.Random:
    return random.Random(seed * 1_000_003 + step)


def question(name: str, letters: Letters) -> list[int]:
    """The tokens after which a model writes the answer and END."""
    return [_TOKEN_OF[name], *letters, _ANSWER]


def _batch(generator: random.Random, names: list[str], tuned_share: float) -> Batch:
    """One example of each named operation: its token, the question, and the answer with its end."""
    questions, answers = [], []
    for name in names:
        operation = OPERATIONS[name]
        letters = [generator.randrange(LETTERS) for _ in range(LENGTH)]
        rule = operation.tuned if generator.random() < tuned_share else operation.common
        questions.append(question(name, letters))
        answers.append([*rule(letters), END])
    longest = max(map(len, answers))
    tokens = [q + a + [END] * (longest - len(a)) for q, a in zip(questions, answers, strict=True)]
    labels = [
        [_IGNORED] * len(q) + a + [_IGNORED] * (longest - len(a))
        for q, a in zip(questions, answers, strict=True)
    ]
    return Batch(torch.tensor(tokens), torch.tensor(labels))


def _loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    logits = model(input_ids=batch.tokens).logits[:, :-1]
    return functional.cross_entropy(
        logits.reshape(-1, _VOCABULARY), batch.labels[:, 1:].reshape(-1), ignore_index=_IGNORED
    )


def _scorer(model: LlamaForCausalLM, test: Batch) -> Callable[[Tensors], Scores]:
    """The weights are BF16; the arithmetic is F32, since many CPUs have no other."""
    wanted = test.labels[:, 1:]
    is_answer = wanted != _IGNORED

    def score(weights: Tensors) -> Scores:
        model.load_state_dict(weights)
        model.eval()
        with torch.inference_mode():
            found = model(input_ids=test.tokens).logits[:, :-1].argmax(-1)
        is_right = found == wanted
        # An answer is right as a whole where greedy decoding, token by token, would give it.
        return {
            "token accuracy": is_right[is_answer].double().mean().item(),
            "exact match": (is_right | ~is_answer).all(1).double().mean().item(),
        }

    return score


def _shifted(letters: Letters, by: int) -> Letters:
    return [(letter + by) % LETTERS for letter in letters]


def _complement(letters: Letters) -> Letters:
    return [LETTERS - 1 - letter for letter in letters]
