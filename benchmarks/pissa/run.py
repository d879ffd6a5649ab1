"""`make bench-pissa`: LoRA against PiSSA, QPiSSA against LoftQ, and what BF16 loses of both.

Trains the bases that are not in the folder `--models` yet, then adapters of both kinds at each
learning rate, on two tasks and three seeds. Prints tables and writes three CSVs; `--picture FILE`
draws losses over steps.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from benchmarks.pissa import bf16, quantization, report, tasks_bytes, tasks_digits
from benchmarks.pissa.picture import draw
from benchmarks.pissa.starts import Start
from benchmarks.pissa.task import Task
from benchmarks.pissa.training import Row, train_adapter
from benchmarks.results_file import RESULTS, write_results

TASKS: dict[str, Callable[[Path, int], Task]] = {
    tasks_digits.NAME: tasks_digits.make_task,
    tasks_bytes.NAME: tasks_bytes.make_task,
}
TITLES = {
    tasks_digits.NAME: "odd to even digits, an MLP of 85 thousand weights, rank 4",
    tasks_bytes.NAME: "Python to documentation, a byte-level Llama of 0.67 million weights, rank 4",
}
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
RANKS = (4, 8, 16, 32)  # of the factors beside NF4, and of the starts in BF16
_STARTS: tuple[Start, ...] = ("LoRA", "PiSSA")
_PACKAGES = ("torch", "transformers", "peft", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Training:
    """What one training is, for another process."""

    task: str
    seed: int
    start: Start
    learning_rate: float


def train(job: Training, models: Path) -> tuple[list[Row], list[bf16.Row]]:
    """The figures of one training; of PiSSA, those of the converted adapter, too."""
    task = TASKS[job.task](models, job.seed)
    trained = train_adapter(task, job.start, job.learning_rate)
    conversions = []
    if job.start == "PiSSA":
        conversions = bf16.measure_conversions(
            task, job.learning_rate, trained.initial, trained.final
        )
    print(f"trained {job}: loss {trained.rows[-1].value:.3f}", flush=True)
    return trained.rows, conversions


def measure_base(seed: int, models: Path) -> tuple[list[quantization.Row], list[bf16.Row]]:
    """What NF4 and BF16 lose of the byte-level base of this seed."""
    task = TASKS[tasks_bytes.NAME](models, seed)
    weights = task.target_weights()
    quantized = [row for rank in RANKS for row in quantization.measure(seed, weights, rank)]
    print(f"measured the base of seed {seed}", flush=True)
    starts = [row for rank in RANKS for row in bf16.measure_starts(replace(task, rank=rank))]
    return quantized, starts


def _make_base(job: tuple[str, int], models: Path) -> None:
    name, seed = job
    TASKS[name](models, seed)


def _use_one_thread() -> None:
    # Two threads of one model are slower than one where other processes want the cores.
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/pissa"))
    parser.add_argument("--bases-only", action="store_true", help="train no adapters")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSVs")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    # The longest first, so that both processes end at the same time.
    tasks = list(reversed(TASKS))
    jobs = [Training(*each) for each in product(tasks, seeds, _STARTS, LEARNING_RATES)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        arguments.processes, mp_context=context, initializer=_use_one_thread
    ) as pool:
        in_folder = {"models": arguments.models}
        list(pool.map(partial(_make_base, **in_folder), list(product(tasks, seeds))))
        measured = list(pool.map(partial(measure_base, **in_folder), seeds))
        todo = [] if arguments.bases_only else jobs
        trained = list(pool.map(partial(train, **in_folder), todo))
    training = [row for rows, _ in trained for row in rows]
    quantized = [row for rows, _ in measured for row in rows]
    rounded = [row for _, rows in [*measured, *trained] for row in rows]
    report.print_quantization(quantized)
    report.print_starts(rounded)
    if training:
        panels = []
        for name, title in TITLES.items():
            of_task = [row for row in training if row.task == name]
            report.print_training(title, of_task)
            report.print_conversions(title, [row for row in rounded if row.task == name])
            panels.append(report.panels(title, of_task))
        if arguments.picture:
            arguments.picture.write_text(draw(panels))
    notes = [f"{name}: {title}" for name, title in TITLES.items()]
    for question, rows in (
        ("pissa-training", training),
        ("pissa-quantization", quantized),
        ("pissa-bf16", rounded),
    ):
        if rows:
            columns = [vars(row) for row in rows]
            write_results(question, columns, _PACKAGES, notes, arguments.results)


if __name__ == "__main__":
    main()
