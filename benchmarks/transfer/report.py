"""The tables that `make bench-transfer` prints, and the panels of its picture."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from benchmarks.results_file import print_columns
from benchmarks.transfer.moves import METHODS, Row
from benchmarks.transfer.picture import Mark, Panel
from benchmarks.transfer.policies import POLICIES, Outcome, accuracy

TARGETS = {"longer": "the old base, trained longer", "apart": "a larger base, trained apart"}


def line(row: Row) -> str:
    """One row for people."""
    if row.right is None:
        return f"{row.method}: not possible: {row.why_not}"
    return (
        f"{row.method}: {100 * accuracy(row):.1f} % right, agrees in {row.agreed} of"
        f" {row.n_held_out}, {row.cpu_seconds:.0f} s"
    )


def print_methods(titles: Mapping[Any, str], rows: Sequence[Row]) -> None:
    """A table for each move, and one of the means over all tasks."""
    for target, about in TARGETS.items():
        for task, title in titles.items():
            print(f"\n{task} ({title}), to {about}; ± the standard error over seeds\n", flush=True)
            _print_table([row for row in rows if (row.task, row.target) == (task, target)])
        print(f"\nall tasks, to {about}; ± the standard error over tasks and seeds\n", flush=True)
        _print_table([row for row in rows if row.target == target])


def _print_table(rows: Sequence[Row]) -> None:
    lines = []
    for method in METHODS:
        of_method = [row for row in rows if row.method == method and row.right is not None]
        if not of_method:
            lines.append([method, "not possible", "", "", "", ""])
            continue
        lines.append(
            [
                method,
                with_error([100 * accuracy(row) for row in of_method]),
                with_error([100 * (row.agreed or 0) / row.n_held_out for row in of_method]),
                *(
                    f"{mean(100 * (each or 0) / row.n_tests for each, row in changes):.1f}"
                    for changes in (
                        [(row.broken, row) for row in of_method],
                        [(row.repaired, row) for row in of_method],
                    )
                ),
                f"{mean(row.cpu_seconds for row in of_method):.1f}",
            ]
        )
    print_columns(
        ["method", "accuracy, %", "agreement, %", "broken, %", "repaired, %", "CPU s"], lines
    )


def print_inputs(rows: Iterable[Any]) -> None:
    """What the target made up and the filter kept: the means over tasks and seeds."""
    print("\nInputs: means over tasks and seeds\n", flush=True)
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        values.setdefault(row.figure, {}).setdefault(row.target, []).append(row.value)
    print_columns(
        ["figure", *TARGETS],
        [
            [figure, *(f"{mean(by_target[target]):.4g}" for target in TARGETS)]
            for figure, by_target in values.items()
        ],
    )


def print_policies(outcomes: Sequence[Outcome]) -> None:
    """What each rule gives the users, and costs."""
    print(
        "\nRules: who decides on a move; regret against the best method of each move\n", flush=True
    )
    lines = []
    for policy in POLICIES:
        found = [each for each in outcomes if each.policy == policy]
        lines.append(
            [
                policy,
                f"{sum(each.is_moved for each in found)} of {len(found)}",
                f"{100 * mean(each.accuracy for each in found):.1f}",
                with_error([100 * each.regret for each in found]),
                f"{sum(each.lost for each in found)}",
                f"{mean(each.cpu_seconds for each in found):.1f}",
            ]
        )
    print_columns(
        ["rule", "moved", "accuracy, %", "regret, points", "lost over 10 points", "CPU s"], lines
    )
    promised = [each for each in outcomes if each.promise is not None]
    kept = sum(each.accuracy >= (each.promise or 0) for each in promised)
    print(f"\nthe gate kept its promise of accuracy in {kept} of {len(promised)} moves", flush=True)


def panels(titles: Mapping[Any, str], rows: Sequence[Row]) -> list[Panel]:
    """One for each task and target."""
    found = []
    for task, title in titles.items():
        for target, about in TARGETS.items():
            marks = []
            for method in METHODS:
                values = [
                    100 * accuracy(row)
                    for row in rows
                    if (row.task, row.target, row.method) == (task, target, method)
                    and row.right is not None
                ]
                marks.append(Mark(method, values))
            found.append(Panel(f"{task}: {title}", f"to {about}", marks))
    return found


def with_error(values: Sequence[float]) -> str:
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean(values):.1f} ± {error:.1f}"
