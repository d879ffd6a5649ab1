"""The tables that `make bench-pissa` prints, and the curves of its picture, from measured rows."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from benchmarks.pissa import bf16, quantization
from benchmarks.pissa.picture import Panels, Point
from benchmarks.pissa.training import TRAINING_LOSS
from benchmarks.pissa.training import Row as TrainingRow
from benchmarks.results_file import print_columns

STARTS = ("LoRA", "PiSSA")


def final_values(
    rows: Iterable[TrainingRow], metric: str
) -> dict[tuple[float, str], dict[int, float]]:
    """(learning rate, start) -> seed -> the metric after the last step. The rows are of one task.

    The training loss is the mean over the last tenth of the steps.
    """
    found: dict[tuple[float, str], dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        if row.metric == metric:
            by_seed = found.setdefault((row.learning_rate, row.start), {})
            by_seed.setdefault(row.seed, []).append((row.step, row.value))
    return {
        key: {
            seed: mean(value for step, value in points if step > 0.9 * max(points)[0])
            for seed, points in by_seed.items()
        }
        for key, by_seed in found.items()
    }


def panels(title: str, rows: Sequence[TrainingRow]) -> Panels:
    """The curves of one task's training loss."""
    by_rate: dict[float, dict[str, list[Point]]] = {}
    for rate in dict.fromkeys(row.learning_rate for row in rows):
        for start in STARTS:
            points: dict[int, list[float]] = {}
            for row in rows:
                if (row.learning_rate, row.start, row.metric) == (rate, start, TRAINING_LOSS):
                    points.setdefault(row.step, []).append(row.value)
            by_rate.setdefault(rate, {})[start] = [
                Point(step, mean(values), min(values), max(values))
                for step, values in sorted(points.items())
            ]
    return Panels(title, by_rate)


def print_training(title: str, rows: Sequence[TrainingRow]) -> None:
    """One line for each learning rate; a star marks the better start where every seed agrees."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    values = {metric: final_values(rows, metric) for metric in metrics}
    print(f"\n{title}; ± the standard error over seeds; * better with every seed\n", flush=True)
    lines = []
    for rate in dict.fromkeys(row.learning_rate for row in rows):
        cells = [f"{rate:g}"]
        for metric in metrics:
            both = [values[metric][rate, start] for start in STARTS]
            sign = -1 if metric == "accuracy" else 1
            ahead = [
                all(sign * own[seed] < sign * other[seed] for seed in own)
                for own, other in (both, both[::-1])
            ]
            for own, is_ahead in zip(both, ahead, strict=True):
                cells.append(f"{_with_error(list(own.values()))}{'*' if is_ahead else ' '}")
        lines.append(cells)
    print_columns(["rate", *(f"{start}: {m}" for m in metrics for start in STARTS)], lines)


def print_quantization(rows: Sequence[quantization.Row]) -> None:
    """The mean reduction over all matrices of all seeds."""
    print("\nQuantization to NF4: % of QLoRA's error that is gone, nuclear norm\n", flush=True)
    lines = []
    for rank in dict.fromkeys(row.rank for row in rows):
        of_rank = [row for row in rows if row.rank == rank]
        means = {
            method: 100 * mean(row.reduction for row in of_rank if row.method == method)
            for method in quantization.METHODS
        }
        lines.append([str(rank), *(f"{value:.1f}" for value in means.values())])
    print_columns(["rank", *quantization.METHODS], lines)


def print_starts(rows: Sequence[bf16.Row]) -> None:
    """The mean error of a weight over all matrices of all seeds, and the mean of the quotients."""
    print("\nStart in BF16: relative error of a weight, Frobenius norm\n", flush=True)
    starts = [row for row in rows if row.subject == "start"]
    lines = []
    for rank in dict.fromkeys(row.rank for row in starts):
        ours, theirs = (
            {
                (row.seed, row.tensor): row.value
                for row in starts
                if (row.rank, row.way) == (rank, way)
            }
            for way in ("PiSSA", "PiSSA by PEFT")
        )
        quotients = [theirs[key] / ours[key] for key in ours]
        errors = [f"{mean(each.values()):.2e}" for each in (ours, theirs)]
        lines.append([str(rank), *errors, f"{mean(quotients):.2f}"])
    print_columns(["rank", "PiSSA", "PiSSA by PEFT", "times"], lines)


def print_conversions(title: str, rows: Sequence[bf16.Row]) -> None:
    """Mean and largest error of an update, in %, by learning rate. The rows are of one task."""
    print(f"\n{title}: converted PiSSA adapters in BF16, relative errors in %\n", flush=True)
    converted = [row for row in rows if row.subject == "conversion"]
    lines = []
    for rate in dict.fromkeys(row.learning_rate for row in converted):
        cells = [f"{rate:g}"]
        for way in (bf16.SHARE, bf16.CAST, bf16.RECOMPRESSED):
            values = [
                100 * row.value for row in converted if (row.learning_rate, row.way) == (rate, way)
            ]
            cells += [f"{mean(values):.2f}"]
            cells += [] if way == bf16.SHARE else [f"{max(values):.2f}"]
        lines.append(cells)
    ways = [f"{way}{end}" for way in (bf16.CAST, bf16.RECOMPRESSED) for end in ("", ", largest")]
    print_columns(["rate", bf16.SHARE, *ways], lines)


def _with_error(values: Sequence[float]) -> str:
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean(values):.3f} ± {error:.3f}"
