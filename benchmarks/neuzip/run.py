"""`make bench-neuzip`: what models lose whose weights stay compressed, and what they save.

Trains a small Llama if it is not in the folder `--models` yet, rounds its matrices and those of an
encoder in every way, and measures scores, decoding, memory and generation. Prints tables, writes
three CSVs, and fails if something does not hold that has to; `--picture FILE` draws scores over
bits a weight.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.neuzip import checks, decoding, quality, report, rivals
from benchmarks.neuzip.contenders import contenders
from benchmarks.neuzip.encoder import make_encoder
from benchmarks.neuzip.exported import write_export
from benchmarks.neuzip.llama import (
    NAME,
    Recipe,
    Sizes,
    TrainedLlama,
    load_model,
    make_large,
    make_llama,
    perplexity,
)
from benchmarks.neuzip.picture import draw
from benchmarks.neuzip.quality import Subject
from benchmarks.neuzip.running import Running, run_apart
from benchmarks.pairs.recipes import BadRecipe
from benchmarks.results_file import RESULTS, write_results
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import resident_bytes

PERPLEXITY = "perplexity"
_PLAIN = "BF16"
# Models of the comparison in memory and speed: name -> mantissa bits, whether to prefetch.
_EXPORTS = {
    "lossless": (7, True),
    "lossless, no prefetch": (7, False),
    "3 bits": (3, True),
    "3 bits, no prefetch": (3, False),
}
_FOR_KL = 32  # windows whose probabilities are compared


@dataclass(frozen=True)
class Effort:
    """rounds, seconds: of each decoding figure. tokens: that are generated, `runs` times."""

    rounds: int = 5
    seconds: float = 0.5
    tokens: int = 64
    runs: int = 2


def llama_subject(llama: TrainedLlama) -> Subject:
    n = sum(each.numel() for each in llama.load().parameters())
    title = f"A Llama of {n / 1e6:.1f} million weights, trained on Python's standard library"

    def outputs(model: nn.Module) -> Tensor:
        with torch.inference_mode():
            found: Tensor = model(input_ids=llama.test[:_FOR_KL, :-1])["logits"]
        return found.float().log_softmax(-1)

    def score(model: nn.Module) -> dict[str, float]:
        return {PERPLEXITY: perplexity(model, llama.test)}

    return Subject(
        NAME, title, llama.load, score, PERPLEXITY, noise=0.001, three_bits=0.002, outputs=outputs
    )


def measure_running(folder: Path, scratch: Path, effort: Effort) -> dict[str, Running]:
    """Of the plain model and its exports, each the fastest of its runs."""
    folders = {_PLAIN: (folder, True)}
    for name, (bits, prefetch) in _EXPORTS.items():
        export = scratch / f"{bits}-bits"
        if not export.is_dir():
            write_export(folder, export, bits)
        folders[name] = export, prefetch
    found = {}
    for name, (path, prefetch) in folders.items():
        runs = [run_apart(path, effort.tokens, prefetch=prefetch) for _ in range(effort.runs)]
        found[name] = max(runs, key=lambda each: each.tokens_s)
        print(f"ran {name}: {found[name]}", flush=True)
    return found


def family_bytes(llama: TrainedLlama) -> tuple[int, int]:
    """(bytes in memory of the base alone, of base and fine-tune), compressed."""
    alone = Family(llama.base, {}, prefetch=False)
    both = Family(llama.base, {"tune": llama.fine_tune}, prefetch=False)
    return resident_bytes(alone.model), resident_bytes(both.model)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".cache/neuzip"))
    parser.add_argument("--only", choices=["quality", "decoding", "running"], action="append")
    parser.add_argument("--no-encoder", action="store_true", help="the scores of the Llama alone")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the CSVs")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # so that the figures are of one core
    wanted = given.only or ["running", "quality", "decoding"]
    claims: list[checks.Claim] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if "running" in wanted:
            large = make_large(given.models, Sizes())
            claims += compare_running(large, scratch, Effort(), given.results)
        if "quality" in wanted:
            llama = make_llama(given.models, Recipe())
            claims += checks.lossless_claims(llama.base, llama.test[:2, :-1], scratch)
            subjects = [llama_subject(llama), *([] if given.no_encoder else _encoder())]
            claims += compare(subjects, given.results, given.picture)
        if "decoding" in wanted:
            measure_decoding(make_llama(given.models, Recipe()), Effort(), given.results)
    report.print_claims(claims)
    failed = [each for each in claims if not each.holds]
    if failed:
        sys.exit(f"{len(failed)} of {len(claims)} claims do not hold")


def compare(subjects: Sequence[Subject], results: Path, picture: Path | None) -> list[checks.Claim]:
    """Measures, prints, writes and draws the scores."""
    for name in rivals.missing():
        print(f"left out, because its package is not installed: {name}", flush=True)
    rows, claims, panels = [], [], []
    for subject in subjects:
        measured = quality.measure(subject, contenders())
        rows += measured
        figures = checks.figures_of(measured, subject.name)
        entropy = quality.entropy_bits(quality.matrices_of(subject.load()))
        found = checks.quality_claims(figures, subject, entropy)
        claims += [checks.Claim(f"{subject.name}, {each.text}", each.holds) for each in found]
        report.print_quality(subject.title, figures, subject.metric)
        report.print_blocks(figures)
        if subject.name == NAME:
            report.print_paper(figures, subject.metric)
        panels += report.panels(subject, figures)
    if picture is not None:
        picture.write_text(draw(panels))
    notes = [f"{subject.name}: {subject.title}" for subject in subjects]
    packages = ["torch", "transformers", "numpy", *rivals.packages()]
    write_results("neuzip-quality", [vars(row) for row in rows], packages, notes, results)
    return claims


def measure_decoding(llama: TrainedLlama, effort: Effort, results: Path) -> None:
    matrices = quality.matrices_of(load_model(llama.base))
    speeds = decoding.measure(matrices, effort.rounds, effort.seconds)
    speeds += decoding.measure_family(llama.base, llama.fine_tune, effort.rounds, effort.seconds)
    report.print_decoding(speeds)
    alone, both = family_bytes(llama)
    note = f"base {alone} bytes in memory; with a fine-tune as differences {both}"
    print(f"\n{note}", flush=True)
    rows: list[dict[str, object]] = [vars(each) for each in speeds]
    write_results("neuzip-decoding", rows, ["torch", "numpy"], [note], results)


def compare_running(
    folder: Path, scratch: Path, effort: Effort, results: Path
) -> list[checks.Claim]:
    """Measures, prints and writes memory and speed of the BF16 model in a folder."""
    found = measure_running(folder, scratch, effort)
    n = sum(each.numel() for each in load_model(folder).parameters())
    title = f"A Llama of {n / 1e6:.0f} million drawn weights"
    report.print_running(title, found)
    rows: list[dict[str, object]] = [{"weights": name} | vars(row) for name, row in found.items()]
    write_results("neuzip-running", rows, ["torch", "transformers"], [title], results)
    largest = max(each.nbytes for each in quality.matrices_of(load_model(folder)).values())
    return checks.running_claims(found, _PLAIN, list(_EXPORTS), largest)


def _encoder() -> list[Subject]:
    try:
        return [make_encoder()]
    except BadRecipe as exc:
        print(f"left out: the encoder. {exc}", flush=True)
        return []


if __name__ == "__main__":
    main()
