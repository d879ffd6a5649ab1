"""What a pool saves and costs: adapters of one task that share the inputs which are made up.

    python -m benchmarks.transfer.pools

Trains an adapter with its kit on the old base, and siblings of it: the same inputs, other secrets,
other private examples. Moves each of them to the old base after more training, once with inputs
from its own kit, and once with those that are made up once from the kits of all by turns.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.results_file import RESULTS, print_columns, write_results
from benchmarks.transfer.bases import make_base
from benchmarks.transfer.moves import Move
from benchmarks.transfer.owner import Owned, Recipe, make_owned
from benchmarks.transfer.policies import accuracy
from benchmarks.transfer.tasks import TITLES, TaskName
from deltahub.methods.transfer.measures.distances import (
    Sketch,
    rounded_gamma,
    sketch_of,
)
from deltahub.methods.transfer.models.embeddings import embed

_PACKAGES = ("torch", "transformers", "peft", "numpy")


@dataclass(frozen=True)
class PoolRow:
    """A move of one adapter. inputs: own or pooled. near: whether the sketches of its kit and of
    the first one can be compared, and cannot be told apart. asked_for: the share of tests whose
    secret a learnt input asks for, null without secrets. accuracy: on private tests. agreed: of
    n_held_out.
    """

    task: str
    seed: int
    sibling: int
    inputs: str
    near: bool
    drawn: int
    acceptance: float
    asked_for: float | None
    accuracy: float
    agreed: int
    n_held_out: int
    draw_cpu_seconds: float
    all_cpu_seconds: float


def measure(
    models: Path, name: TaskName, seed: int, n_siblings: int, recipe: Recipe
) -> list[PoolRow]:
    """Each adapter moves with its own inputs, and with those of the pool."""
    target = make_base(models, "longer", recipe.bases)
    owned = [make_owned(models, name, seed, recipe, each) for each in range(n_siblings + 1)]
    seeds = [each.seeds for each in owned]
    pool: dict[int, list[str]] = {}
    rows = []
    for each in owned:
        near = _sketch(owned[0]).is_near(_sketch(each))
        rows.append(_row(Move(each, target, recipe), "own", near=near))
        rows.append(_row(Move(each, target, recipe, seeds, pool), "pooled", near=near))
    return rows


def _row(move: Move, which: str, *, near: bool) -> PoolRow:
    began = time.process_time()
    inputs = move.make_inputs()
    found = move.measure("Trans-LoRA", inputs)
    task = move.owned.task
    row = PoolRow(
        task.name, task.seed, task.sibling, which, near, int(inputs.figures["drawn"]),
        round(inputs.figures["accepted"], 4),
        task.shown(inputs.learnt, move.owned.tests), round(accuracy(found), 4),
        found.agreed or 0, found.n_held_out, round(inputs.draw_seconds, 2),
        round(time.process_time() - began, 2),
    )  # fmt: skip
    print(row, flush=True)
    return row


def _sketch(owned: Owned) -> Sketch:
    """As a kit of the product has it."""
    texts = [each.text for each in owned.private]
    found = embed(owned.base.model(), owned.base.tokenizer, texts)
    return sketch_of(found, rounded_gamma(owned.sketch.gamma))


def print_rows(rows: Sequence[PoolRow]) -> None:
    columns = [name for name in vars(rows[0]) if name not in ("task", "seed")]
    print_columns(columns, [[str(getattr(row, name)) for name in columns] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/transfer"))
    parser.add_argument("--task", choices=TITLES, default="table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--siblings", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSV")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.models, arguments.task, arguments.seed, arguments.siblings, Recipe())
    print_rows(rows)
    notes = [f"{arguments.task}: {TITLES[arguments.task]}"]
    columns = [vars(row) for row in rows]
    write_results("transfer-pools", columns, _PACKAGES, notes, arguments.results)


if __name__ == "__main__":
    main()
