"""The ways of storing a model's matrices in fewer bits, each as what it makes of them.

All of them round the same BF16 matrices, and what they decode to is rounded to BF16. Sizes count
all that is stored: scales, tables, checksums and headers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from benchmarks.neuzip import rivals
from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import Coding, coding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.exporting.budget import Trial, choose_bits
from deltahub.methods.exporting.entquant import Encoding
from deltahub.methods.inference.rounding import roundings_of
from deltahub.methods.inference.sources import Source, compressed
from deltahub.methods.kinds.weights.choice import TRIED_BITS, Choice

NEUZIP: Final = "NeuZip"
PLAIN: Final = "BF16"
LOSSLESS: Final = "NeuZip, lossless"
BUDGET: Final = 6.0  # bits a weight
PAPER_BLOCK: Final = 512
ENTQUANT_BITS: Final = (4, 3, 2)

Matrices = Mapping[str, Tensor]  # name -> outputs x inputs, BF16


@dataclass(frozen=True)
class Rounded:
    """What a contender makes of all matrices. size_bytes: of all of them, as stored."""

    matrices: dict[str, Tensor]
    size_bytes: int


@dataclass(frozen=True)
class Contender:
    """bits: the mantissa bits of NeuZip with the same for all weights; block: its block."""

    name: str
    round: Callable[[Matrices], Rounded]
    bits: int | None = None
    block: int = 0


def contenders() -> list[Contender]:
    """Everything that runs here, BF16 first."""
    found = [Contender(PLAIN, _plain)]
    found.append(Contender(LOSSLESS, partial(_neuzip, bits=7, block=0), 7))
    for bits in (5, 3, 1, 0):
        for block in (0, PAPER_BLOCK):
            name = neuzip_name(bits, block)
            found.append(Contender(name, partial(_neuzip, bits=bits, block=block), bits, block))
    found.append(Contender(f"NeuZip, auto at {BUDGET:g}", partial(_auto, budget=BUDGET)))
    for bits in ENTQUANT_BITS:
        found.append(Contender(entquant_name(bits), partial(_entquant, bits=bits)))
    for name, rival in rivals.available().items():
        found.append(Contender(name, partial(_each, rival=rival)))
    return found


def neuzip_name(bits: int, block: int) -> str:
    return f"NeuZip, {bits} bits" + (f", block {block}" if block else "")


def entquant_name(bits: int) -> str:
    return f"EntQuant, {bits} bits"


def _plain(matrices: Matrices) -> Rounded:
    return Rounded(dict(matrices), sum(each.nbytes for each in matrices.values()))


def _neuzip(matrices: Matrices, bits: int, block: int) -> Rounded:
    how = coding(DType.BF16, bits, block)
    return _coded(matrices, dict.fromkeys(matrices, how))


def _auto(matrices: Matrices, budget: float) -> Rounded:
    """As the job `export_neuzip` chooses with bits auto."""
    trials = {
        name: [_trial(name, weight, coding(DType.BF16, bits, 0)) for bits in TRIED_BITS]
        for name, weight in matrices.items()
    }
    counts = {name: weight.numel() for name, weight in matrices.items()}
    chosen = choose_bits(trials, counts, budget)
    return _coded(matrices, {name: coding(DType.BF16, bits, 0) for name, bits in chosen.items()})


def _entquant(matrices: Matrices, bits: int) -> Rounded:
    """As the job `export_neuzip` chooses by the method entquant."""
    hows = {name: IntegerCoding(DType.BF16, each.shape[1]) for name, each in matrices.items()}
    return _coded(matrices, roundings_of(Choice({**hows}, (), ()), matrices, bits))


def _trial(name: str, weight: Tensor, how: Coding) -> Trial:
    stored = compressed(name, weight, how)
    lost = Source(stored).decode().double() - weight.double()
    error = float(lost.norm() / weight.double().norm())
    return Trial(how.bits, stored.size_bytes(), error)


def _coded(matrices: Matrices, hows: Mapping[str, Encoding]) -> Rounded:
    stored = {name: compressed(name, matrices[name], how) for name, how in hows.items()}
    return Rounded(
        {name: Source(each).decode() for name, each in stored.items()},
        sum(each.size_bytes() for each in stored.values()),
    )


def _each(matrices: Matrices, rival: rivals.Rival) -> Rounded:
    found, size_bits = {}, 0.0
    for name, weight in matrices.items():
        decoded, bits = rival(weight.float())
        found[name] = decoded.to(torch.bfloat16)
        size_bits += bits * weight.numel()
    return Rounded(found, round(size_bits / 8))
