"""`make bench-merge`: one model for many tasks, by several methods, on two suites and three seeds.

Trains the suites that are not in the folder `--models` yet, scores each method on each task's test
set, prints one table for each suite and writes a CSV; `--picture FILE` draws scores against bytes.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.merging import tasks_digits, tasks_llama
from benchmarks.merging.hub_methods import HUB_METHODS
from benchmarks.merging.methods import METHODS as PLAIN_METHODS
from benchmarks.merging.picture import Panel, Point, draw
from benchmarks.merging.suite import Suite
from benchmarks.results_file import RESULTS, print_columns, write_results

METHODS = PLAIN_METHODS | HUB_METHODS
SUITES: dict[str, Callable[[Path, int], Suite]] = {
    tasks_digits.NAME: tasks_digits.make_suite,
    tasks_llama.NAME: tasks_llama.make_suite,
}
TITLES = {
    tasks_digits.NAME: "8 domains of real digits, an MLP of 0.6 million F32 weights",
    tasks_llama.NAME: "8 operations on sequences, a Llama of 1.0 million BF16 weights",
}
WHOLE = "individual"  # always measured: the others are held against it
_PACKAGES = ("torch", "transformers", "safetensors", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Row:
    """One metric of one task, served by one method. score: a share between 0 and 1."""

    suite: str
    method: str
    seed: int
    task: str
    metric: str
    score: float
    stored_bytes: int
    note: str


@dataclass(frozen=True)
class Line:
    """A method's row in the table of a suite; scores: metric -> (mean, standard error)."""

    method: str
    stored_bytes: int
    scores: dict[str, tuple[float, float]]
    notes: tuple[str, ...]


def measure(suite: Suite, methods: Sequence[str] = tuple(METHODS)) -> list[Row]:
    rows = []
    for method in methods:
        merged = METHODS[method](suite)
        for task, weights in zip(suite.tasks, merged.weights, strict=True):
            for metric, score in task.score(weights).items():
                rows.append(
                    Row(
                        suite.name,
                        method,
                        suite.seed,
                        task.name,
                        metric,
                        score,
                        merged.size_bytes,
                        merged.note,
                    )
                )
    print(f"measured {suite.name}, seed {suite.seed}: {', '.join(methods)}", flush=True)
    return rows


def summarise(rows: Sequence[Row]) -> list[Line]:
    """A line for each method, in the order of the rows, which are of one suite.

    The mean is that over all tasks and seeds; the error is that of the seeds' means.
    """
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        of_method = [row for row in rows if row.method == method]
        scores = {}
        for metric in dict.fromkeys(row.metric for row in of_method):
            by_seed: dict[int, list[float]] = {}
            for row in of_method:
                if row.metric == metric:
                    by_seed.setdefault(row.seed, []).append(row.score)
            means = [mean(found) for found in by_seed.values()]
            error = stdev(means) / len(means) ** 0.5 if len(means) > 1 else float("nan")
            scores[metric] = (mean(means), error)
        notes = tuple(dict.fromkeys(row.note for row in of_method if row.note))
        lines.append(Line(method, of_method[0].stored_bytes, scores, notes))
    return lines


def print_table(title: str, lines: Sequence[Line]) -> None:
    whole = _whole_bytes(lines)
    metrics = list(lines[0].scores)
    print(f"\n{title}; shares in %, ± the standard error over seeds\n", flush=True)
    print_columns(
        ["method", "MB", "% of bytes", *metrics],
        [
            [
                line.method,
                f"{line.stored_bytes / 1e6:.2f}",
                f"{100 * line.stored_bytes / whole:.1f}",
                *(
                    f"{100 * value:.1f} ± {100 * error:.1f}"
                    for value, error in line.scores.values()
                ),
            ]
            for line in lines
        ],
    )
    for line in lines:
        if line.notes:
            print(f"{line.method}: {'; '.join(line.notes)}", flush=True)


def panel(title: str, lines: Sequence[Line]) -> Panel:
    """Scores of the main metric against bytes, in % of those of all fine-tunes."""
    whole = _whole_bytes(lines)
    metric = next(iter(lines[0].scores))
    points = [
        Point(line.method, 100 * line.stored_bytes / whole, 100 * line.scores[metric][0])
        for line in lines
    ]
    return Panel(title, f"{metric}, %", points)


def _whole_bytes(lines: Sequence[Line]) -> int:
    """The bytes of all fine-tunes, each stored whole: every percentage is of these."""
    return next(line.stored_bytes for line in lines if line.method == WHOLE)


def _measure_seed(job: tuple[str, int], models: Path, methods: Sequence[str]) -> list[Row]:
    # Two threads of one model are slower than one where other processes want the cores.
    torch.set_num_threads(1)
    name, seed = job
    return measure(SUITES[name](models, seed), methods)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/merging"))
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="may be repeated")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSV")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    arguments = parser.parse_args()
    suites = arguments.suite or list(SUITES)
    jobs = [(name, seed) for name in suites for seed in range(arguments.seeds)]
    methods = list(dict.fromkeys([WHOLE, *(arguments.method or METHODS)]))
    do = partial(_measure_seed, models=arguments.models, methods=methods)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        rows = [row for found in pool.map(do, jobs) for row in found]
    panels = []
    for name in suites:
        lines = summarise([row for row in rows if row.suite == name])
        print_table(TITLES[name], lines)
        panels.append(panel(TITLES[name], lines))
    if arguments.picture:
        arguments.picture.write_text(draw(panels))
    notes = [f"{name}: {TITLES[name]}" for name in suites]
    write_results("merging", [vars(row) for row in rows], _PACKAGES, notes, arguments.results)


if __name__ == "__main__":
    main()
