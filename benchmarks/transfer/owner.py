"""What an owner does with private data: the adapter and its kit, on the old base.

The parts of the kit are those of Trans-LoRA (arXiv 2405.17258), section 3: seeds, and a
discriminator that tells the private inputs from what the old base makes up.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from benchmarks.merging.suite import suite_folder, trained
from benchmarks.pairs.layout import load, save
from benchmarks.transfer.bases import Base, make_base
from benchmarks.transfer.bases import Recipe as BasesRecipe
from benchmarks.transfer.tasks import Task, TaskName, make_task
from benchmarks.transfer.world import NAME
from deltahub.methods.transfer.kit import N_SEEDS
from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport
from deltahub.methods.transfer.measures.distances import Sketch, median_gamma, sketch_of
from deltahub.methods.transfer.models.adapters import (
    DISCRIMINATOR,
    TEACHER,
    add_adapter,
    set_state,
    state_of,
)
from deltahub.methods.transfer.models.discriminator import train_discriminator
from deltahub.methods.transfer.models.embeddings import embed
from deltahub.methods.transfer.models.generating import Sampling
from deltahub.methods.transfer.models.inventing import invent
from deltahub.methods.transfer.models.students import Labelled, encode_all, label
from deltahub.methods.transfer.models.training import shuffled_order, train
from deltahub.methods.transfer.recipe import Recipe as Training

LINEARS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BATCH: Final = 128  # texts that are read at once, where nothing is learnt
_ADAPTER, _DISCRIMINATOR, _KIT = "adapter.safetensors", "discriminator.safetensors", "kit.json"


@dataclass(frozen=True)
class Recipe:
    """bases: how these are trained. steps: of every training of an adapter."""

    bases: BasesRecipe = field(default_factory=BasesRecipe)
    n_private: int = 250
    n_seeds: int = N_SEEDS  # private inputs that the kit shows
    n_tests: int = 300
    steps: int = 300
    batch: int = 32
    learning_rate: float = 3e-3
    discriminator_epochs: int = 12
    n_lists: int = 32  # that a base writes in one call
    budget_times: int = 40  # inputs that may be drawn for each that is wanted

    def training(self, n_examples: int, seed: int) -> Training:
        """Of a teacher or a student: as many steps, however many examples there are."""
        batch = min(self.batch, n_examples)
        return Training(
            rank=8,
            alpha=16,
            targets=LINEARS,
            learning_rate=self.learning_rate,
            batch_size=batch,
            epochs=max(1, round(self.steps / -(-n_examples // batch))),
            warmup_share=0.1,
            seed=seed,
        )


@dataclass(frozen=True)
class Owned:
    """The adapter and its kit. tests: private examples that nothing was trained on."""

    task: Task
    base: Base
    adapter: dict[str, Tensor]
    discriminator: dict[str, Tensor]
    about: DiscriminatorReport
    sketch: Sketch
    private: list[Labelled]
    tests: list[Labelled]
    n_seeds: int
    training: Training
    cpu_seconds: float  # of the adapter alone

    @property
    def seeds(self) -> list[str]:
        return [each.text for each in self.private[: self.n_seeds]]

    def source(self) -> Any:
        """The old base with the adapter and the discriminator."""
        model = self.base.model()
        for name, state in ((TEACHER, self.adapter), (DISCRIMINATOR, self.discriminator)):
            model = add_adapter(model, self.training, name)
            set_state(model, name, state)
        return model


def make_owned(
    models: Path, name: TaskName, seed: int, recipe: Recipe = Recipe(), sibling: int = 0
) -> Owned:
    """Trains what is not in the folder `models` yet."""
    task = make_task(name, seed, sibling)
    base = make_base(models, "old", recipe.bases)
    examples = task.examples(recipe.n_private + recipe.n_tests)
    private, tests = examples[: recipe.n_private], examples[recipe.n_private :]
    training = recipe.training(len(private), seed)

    def make(out: Path) -> dict[str, float]:
        return _train(task, base, private, recipe, training, out)

    folder = trained(
        suite_folder(models, "kit", recipe, seed) / (f"{name}-{sibling}" if sibling else name), make
    )
    kit = json.loads((folder / _KIT).read_text())
    return Owned(
        task,
        base,
        load(folder / _ADAPTER),
        load(folder / _DISCRIMINATOR),
        DiscriminatorReport.model_validate(kit["discriminator"]),
        Sketch.model_validate(kit["sketch"]),
        private,
        tests,
        recipe.n_seeds,
        training,
        kit["adapter_cpu_seconds"],
    )


def answers_of(
    model: Any, tokenizer: Any, adapter: str | None, task: Task, examples: Sequence[Labelled]
) -> list[str]:
    """What a model answers to the examples."""
    found = label(
        model, tokenizer, [each.text for each in examples], task.contract,
        adapter=adapter, batch_size=BATCH,
    )  # fmt: skip
    return [each.completion for each in found]


def _train(
    task: Task,
    base: Base,
    private: list[Labelled],
    recipe: Recipe,
    training: Training,
    out: Path,
) -> dict[str, float]:
    began = time.process_time()
    tokenizer, texts = base.tokenizer, [each.text for each in private]
    model = add_adapter(base.model(), training, TEACHER)
    train(
        model,
        shuffled_order(encode_all(tokenizer, private, task.contract), training.seed),
        training,
    )
    adapter_s = time.process_time() - began
    save(state_of(model, TEACHER), out / _ADAPTER, "F32")
    # The discriminator is trained on the plain base, as at another time.
    model = base.model()
    invented: list[str] = []
    for call in range(100):
        if len(set(invented)) >= len(private):
            break
        invented += invent(
            model, tokenizer, texts[: recipe.n_seeds], call,
            n_lists=recipe.n_lists, sampling=Sampling(seed=training.seed + 1000),
        )  # fmt: skip
    invented = list(dict.fromkeys(invented))[: len(private)]
    gamma = median_gamma(embed(model, tokenizer, invented))
    sketch = sketch_of(embed(model, tokenizer, texts), gamma)
    judge = training.model_copy(update={"epochs": recipe.discriminator_epochs, "batch_size": 16})
    model, report = train_discriminator(model, tokenizer, texts, invented, NAME, judge)
    save(state_of(model, DISCRIMINATOR), out / _DISCRIMINATOR, "F32")
    kit = {
        "discriminator": report.model_dump(),
        "sketch": sketch.model_dump(),
        "adapter_cpu_seconds": adapter_s,
    }
    (out / _KIT).write_text(json.dumps(kit) + "\n")
    return {"auc": report.auc, "cpu_seconds": time.process_time() - began}
