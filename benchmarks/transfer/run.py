"""`make bench-transfer`: adapters that are moved to new bases, by every method that a hub has.

Trains bases that are not in the folder `--models` yet, and adapters with kits on the old one. Moves
each adapter to the old base after more training, and to a larger one that was trained apart. Prints
tables and writes three CSVs; `--picture FILE` draws accuracies. A run that was ended goes on where
it was, as long as the commit is the same.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import torch

from benchmarks.results_file import RESULTS, commit, write_results
from benchmarks.transfer import report
from benchmarks.transfer.bases import TARGETS, BaseName, make_base
from benchmarks.transfer.moves import METHODS, Method, Move, Row, stored_inputs, stored_row
from benchmarks.transfer.owner import Recipe, make_owned
from benchmarks.transfer.picture import draw
from benchmarks.transfer.policies import policies
from benchmarks.transfer.tasks import TITLES, TaskName
from deltahub.methods.transfer.kit import N_SEEDS

QUICK: Final[tuple[TaskName, ...]] = ("pairs", "median")
_PACKAGES = ("torch", "transformers", "peft", "numpy")


@dataclass(frozen=True)
class Job:
    """One move, for another process."""

    task: TaskName
    seed: int
    target: BaseName


@dataclass(frozen=True)
class InputsRow:
    """A figure of the inputs that one move made."""

    task: str
    seed: int
    target: str
    figure: str
    value: float


def do(
    job: Job, models: Path, results: Path, recipe: Recipe, methods: Sequence[Method]
) -> tuple[list[Row], list[InputsRow]]:
    """These methods, or what an ended run has left of them."""
    owned = make_owned(models, job.task, job.seed, recipe)
    move = Move(owned, make_base(models, job.target, recipe.bases), recipe)
    folder = results / f"{job.task}-{job.seed}-{job.target}"
    rows = []
    for method in methods:
        rows.append(stored_row(move, method, folder))
        print(f"{job.task} {job.seed} {job.target}: {report.line(rows[-1])}", flush=True)
    inputs = stored_inputs(move, folder)
    figures = dict(inputs.figures)
    for which, learnt in (("accepted", inputs.learnt), ("unfiltered", inputs.unfiltered)):
        shown = owned.task.shown(learnt, owned.tests)
        if shown is not None:
            figures[f"tests whose secret the {which} inputs ask for"] = shown
    return rows, [
        InputsRow(job.task, job.seed, job.target, name, value) for name, value in figures.items()
    ]


def _make_kit(job: tuple[TaskName, int], models: Path, recipe: Recipe) -> None:
    make_owned(models, *job, recipe)


def _make_base(name: BaseName, models: Path, recipe: Recipe) -> None:
    make_base(models, name, recipe.bases)


def _use_one_thread() -> None:
    # Two threads of one model are slower than one where other processes want the cores.
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/transfer"))
    parser.add_argument("--full", action="store_true", help="four tasks in place of two")
    parser.add_argument("--tasks", nargs="+", choices=TITLES, help="these tasks alone")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, help="these bases alone")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, help="these alone: then no rules are judged"
    )
    parser.add_argument("--kit-seeds", type=int, default=N_SEEDS, help="inputs that a kit shows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSVs")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    parser.add_argument("--bases-only", action="store_true", help="train the bases, and end")
    arguments = parser.parse_args()
    recipe = Recipe(n_seeds=arguments.kit_seeds)
    models, seeds = arguments.models, range(arguments.seeds)
    tasks: tuple[TaskName, ...] = tuple(TITLES) if arguments.full else QUICK
    if arguments.tasks:
        tasks = tuple(arguments.tasks)
    # Seeds come first, so that a run that is ended early has whole seeds.
    targets: tuple[BaseName, ...] = tuple(arguments.targets or TARGETS)
    methods: tuple[Method, ...] = tuple(arguments.methods or METHODS)
    jobs = [Job(task, seed, target) for seed, task, target in product(seeds, tasks, targets)]
    shared = {"models": models, "recipe": recipe}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        arguments.processes, mp_context=context, initializer=_use_one_thread
    ) as pool:
        names: tuple[BaseName, ...]
        for names in (("apart", "old"), ("longer",)):  # the last one goes on from the old one
            list(pool.map(partial(_make_base, **shared), names))
        if arguments.bases_only:
            return
        list(pool.map(partial(_make_kit, **shared), [(t, s) for s, t in product(seeds, tasks)]))
        results = models / f"moves-{commit()}-{recipe.n_seeds}"
        done = list(pool.map(partial(do, results=results, methods=methods, **shared), jobs))
    rows = [row for each, _ in done for row in each]
    figures = [row for _, each in done for row in each]
    titles = {name: TITLES[name] for name in tasks}
    found: dict[str, Sequence[object]] = {"transfer-methods": rows, "transfer-inputs": figures}
    if (methods, targets) == (METHODS, TARGETS):
        found["transfer-policies"] = outcomes = policies(rows)
        report.print_methods(titles, rows)
        report.print_inputs(figures)
        report.print_policies(outcomes)
        if arguments.picture:
            arguments.picture.write_text(draw(report.panels(titles, rows)))
    notes = [f"{name}: {title}" for name, title in titles.items()]
    notes.append(f"seeds of each kit: {recipe.n_seeds}")
    kind = "" if recipe.n_seeds == N_SEEDS else f"-{recipe.n_seeds}-seeds"
    for question, told in found.items():
        columns = [vars(row) for row in told]
        write_results(question + kind, columns, _PACKAGES, notes, arguments.results)


if __name__ == "__main__":
    main()
