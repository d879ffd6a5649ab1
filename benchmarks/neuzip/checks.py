"""What has to hold of the figures. `make bench-neuzip` fails if something does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.neuzip.contenders import (
    BUDGET,
    ENTQUANT_BITS,
    LOSSLESS,
    PAPER_BLOCK,
    PLAIN,
    entquant_name,
    neuzip_name,
)
from benchmarks.neuzip.exported import write_export
from benchmarks.neuzip.llama import load_model
from benchmarks.neuzip.quality import BITS, ERROR, KL, Row, Subject
from benchmarks.neuzip.rivals import NF4
from benchmarks.neuzip.running import Running
from deltahub.methods.inference.model import compress_, load_folder

ENTQUANT_TOLERANCE: Final = 0.15  # bits a weight, from those that were asked for
LOSSLESS_SHARE: Final = 0.70  # of the plain size, which the paper's lossless models keep below
_ENTROPY: Final = 1.03  # times the entropy of single exponents
_LEVELS: Final = (7, 5, 3, 1, 0)
# What the allocator keeps, and the stack of the thread that prefetches.
_SLACK: Final = 4 << 20

Figures = Mapping[str, Mapping[str, float]]  # contender -> metric -> value


@dataclass(frozen=True)
class Claim:
    """A sentence with its figures, and whether it holds."""

    text: str
    holds: bool


def figures_of(rows: Sequence[Row], subject: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.subject == subject:
            found.setdefault(row.contender, {})[row.metric] = row.value
    return found


def lossless_claims(folder: Path, inputs: Tensor, scratch: Path) -> list[Claim]:
    """Both ways to run compressed weights compute the plain model's logits, bit for bit."""
    plain = _logits(load_model(folder), inputs)
    here = _logits(compress_(load_model(folder), bits=7), inputs)
    export = write_export(folder, scratch / "lossless", bits=7)
    loaded = _logits(load_folder(export), inputs)
    rounded = _logits(load_folder(write_export(folder, scratch / "rounded", bits=3)), inputs)
    same = _logits(compress_(load_model(folder), bits=3), inputs)
    return [
        Claim("compress_: lossless logits equal the plain model's", torch.equal(plain, here)),
        Claim("load_folder: lossless logits equal the plain model's", torch.equal(plain, loaded)),
        Claim("compress_ and load_folder agree at 3 bits", torch.equal(rounded, same)),
        Claim("3 bits change the logits", not torch.equal(rounded, plain)),
    ]


def quality_claims(figures: Figures, subject: Subject, entropy_bits: float) -> list[Claim]:
    """entropy_bits: that a coder of single exponents needs for an element."""
    score = subject.metric
    plain, lossless, three = figures[PLAIN], figures[LOSSLESS], figures[neuzip_name(3, 0)]
    bits, lost = lossless[BITS], three[score] / plain[score] - 1
    claims = [
        Claim(f"lossless: {score} {lossless[score]:.5f}, exactly that of BF16",
              lossless[score] == plain[score] and lossless[ERROR] == 0),
        Claim(f"lossless: {bits:.2f} bits are at most {_ENTROPY:g} times the {entropy_bits:.2f}"
              " that single exponents need", bits <= _ENTROPY * entropy_bits),
        Claim(f"lossless: {bits / 16:.3f} of the plain size, at most {LOSSLESS_SHARE:.2f}",
              bits / 16 <= LOSSLESS_SHARE),
        Claim(f"3 bits: {score} {100 * lost:+.3f} %, within {100 * subject.three_bits:g} %",
              abs(lost) <= subject.three_bits),
        Claim(f"3 bits: {three[BITS]:.2f} bits a weight, fewer than 7", three[BITS] < 7),
        *_order(figures, subject, 0),
        *_order(figures, subject, PAPER_BLOCK),
    ]  # fmt: skip
    (auto,) = (each for name, each in figures.items() if "auto" in name)
    claims.append(Claim(f"auto: {auto[BITS]:.3f} bits, within {BUDGET:g}", auto[BITS] <= BUDGET))
    for wanted in ENTQUANT_BITS:
        got = figures[entquant_name(wanted)][BITS]
        told = f"EntQuant: {got:.3f} bits, {wanted} were asked for"
        claims.append(Claim(told, abs(got - wanted) <= ENTQUANT_TOLERANCE))
    one, nf4 = figures[neuzip_name(1, 0)], figures[NF4]
    claims.append(Claim(
        f"1 bit is no better than NF4: error {one[ERROR]:.4f} at {one[BITS]:.2f} bits,"
        f" {nf4[ERROR]:.4f} at {nf4[BITS]:.2f}; divergence {one[KL]:.3g}, {nf4[KL]:.3g}",
        one[ERROR] >= nf4[ERROR] and one[KL] >= nf4[KL]))  # fmt: skip
    return claims


def _order(figures: Figures, subject: Subject, block: int) -> list[Claim]:
    score, noise = subject.metric, subject.noise
    names = [LOSSLESS, *(neuzip_name(bits, block) for bits in _LEVELS[1:])]
    pairs = list(pairwise(names))
    errors = all(figures[a][each] < figures[b][each] for a, b in pairs for each in (ERROR, KL))
    sizes = all(figures[a][BITS] > figures[b][BITS] for a, b in pairs)
    scores = all(figures[a][score] <= figures[b][score] * (1 + noise) for a, b in pairs)
    told = f"block {block}: with fewer mantissa bits"
    return [
        Claim(f"{told}, smaller, with a larger error and divergence", errors and sizes),
        Claim(f"{told}, no better {score}, within {100 * noise:g} %", scores),
    ]


def running_claims(
    found: Mapping[str, Running], plain: str, compressed: Sequence[str], largest: int
) -> list[Claim]:
    """One pass of a compressed model takes its weights, two buffers and what a plain pass computes.

    largest: bytes of the largest matrix, which the buffers have. Tensors that are plain count
    twice, because pages of the file that they were copied from count until the system wants them.
    """
    whole = found[plain]
    others = max(0, whole.forward_bytes - whole.resident_bytes)
    claims = []
    for name in compressed:
        each = found[name]
        copied = each.resident_bytes - each.matrix_bytes
        most = each.resident_bytes + copied + 2 * largest + others + _SLACK
        told = f"{name}: one pass takes {each.forward_bytes / 1e6:.1f} MB"
        claims.append(Claim(f"{told}, at most {most / 1e6:.1f}", each.forward_bytes <= most))
    return claims


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=inputs).logits
    return found
