"""The tables that `make bench-neuzip` prints, and the panels of its picture."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.neuzip.checks import Claim, Figures
from benchmarks.neuzip.contenders import LOSSLESS, NEUZIP, PLAIN, neuzip_name
from benchmarks.neuzip.decoding import Speed
from benchmarks.neuzip.picture import Panel, Point
from benchmarks.neuzip.quality import BITS, ERROR, KL, Subject
from benchmarks.neuzip.running import Running
from benchmarks.results_file import print_columns

# Table 3 of the paper, of Llama 3 8B: name -> (GiB of memory, perplexity of words).
PAPER: Final = {"plain": (15.08, 9.89), "lossless": (10.95, 9.89), "3 bits": (7.70, 9.93)}


def print_quality(title: str, figures: Figures, score: str) -> None:
    print(f"\n{title}: what rounded matrices lose\n", flush=True)
    others = [each for each in next(iter(figures.values())) if each not in (BITS, ERROR, score)]
    plain = figures[PLAIN][score]
    lines = [
        [
            name,
            f"{each[BITS]:.2f}",
            f"{each[score]:.4f}",
            f"{100 * (each[score] / plain - 1):+.3f}",
            f"{100 * each[ERROR]:.2f}",
            *(f"{each[metric]:.3g}" for metric in others),
        ]
        for name, each in sorted(figures.items(), key=lambda pair: -pair[1][BITS])
    ]
    print_columns(["contender", BITS, score, "change, %", "error, %", *others], lines)


def print_blocks(figures: Figures) -> None:
    """What dividing blocks of 512 by their largest fraction changes, at each number of bits."""
    print("\nBlock 512 beside no division\n", flush=True)
    lines = []
    for bits in (5, 3, 1, 0):
        free, divided = figures[neuzip_name(bits, 0)], figures[neuzip_name(bits, 512)]
        lines.append([
            f"{bits} bits",
            f"{divided[BITS] - free[BITS]:+.4f}",
            *(f"{divided[metric] / free[metric] - 1:+.3%}"
              for metric in free if metric != BITS and free[metric]),
        ])  # fmt: skip
    metrics = [metric for metric in figures[neuzip_name(5, 0)] if metric != BITS]
    print_columns(["mantissa", BITS, *metrics], lines)


def print_decoding(speeds: Sequence[Speed]) -> None:
    print("\nDecoding, MB of BF16 a second of CPU time\n", flush=True)
    lines = [
        [each.name, f"{each.megabytes_s:.0f}", f"{each.least:.0f}", f"{each.most:.0f}"]
        for each in speeds
    ]
    print_columns(["what", "median", "slowest", "fastest"], lines)


def print_running(title: str, found: Mapping[str, Running]) -> None:
    print(f"\n{title}: memory in MB and speed of a model that generates\n", flush=True)
    lines = [
        [
            name,
            *(f"{n / 1e6:.1f}" for n in (
                each.matrix_bytes, each.resident_bytes, each.forward_bytes, each.generate_bytes,
            )),
            f"{each.tokens_s:.1f}",
            f"{each.cpu_ms_a_token:.1f}",
        ]
        for name, each in found.items()
    ]  # fmt: skip
    print_columns(
        ["model", "matrices", "all weights", "one pass", "generating", "tokens/s", "CPU ms/token"],
        lines,
    )


def print_paper(figures: Figures, score: str) -> None:
    """The paper's table 3 beside what was measured, in shares of the plain model."""
    print("\nThe paper's table 3, Llama 3 8B, beside this model's matrices\n", flush=True)
    lines = []
    for ours, theirs in ((LOSSLESS, "lossless"), (neuzip_name(3, 0), "3 bits")):
        shares = [paper / plain for paper, plain in zip(PAPER[theirs], PAPER["plain"], strict=True)]
        own = [figures[ours][metric] / figures[PLAIN][metric] for metric in (BITS, score)]
        lines.append([theirs, *(f"{share:.3f}" for share in (*shares, *own))])
    print_columns(["", "memory", "perplexity", "here: memory", f"here: {score}"], lines)


def print_claims(claims: Sequence[Claim]) -> None:
    print("\nWhat has to hold\n", flush=True)
    for claim in claims:
        print(f"{'holds ' if claim.holds else 'FAILS '} {claim.text}", flush=True)


def panels(subject: Subject, figures: Figures) -> list[Panel]:
    """Of the score, and of the divergence.

    Without contenders with a block, whose points would hide the others'.
    """
    title, score = subject.title, subject.metric
    plain = figures[PLAIN][score]
    shown = {name: each for name, each in figures.items() if not _is_divided(name)}
    losses = {name: 100 * (each[score] / plain - 1) for name, each in shown.items()}
    strays = {name: each[KL] for name, each in shown.items()}
    return [
        _panel(title, f"{score} above that of BF16, %", 1e-3, shown, losses),
        _panel(f"The same {subject.name}", "divergence from BF16, nats", 1e-6, shown, strays),
    ]


def _panel(
    title: str, what: str, least: float, figures: Figures, losses: Mapping[str, float]
) -> Panel:
    points = []
    for name, lost in losses.items():
        is_ours = name.startswith(NEUZIP)
        label = name.removeprefix(f"{NEUZIP}, ") if is_ours else name
        on_curve = is_ours and "auto" not in name
        points.append(Point(label, figures[name][BITS], lost, is_ours, on_curve))
    return Panel(title, what, least, points)


def _is_divided(name: str) -> bool:
    return name.startswith(NEUZIP) and "block" in name
