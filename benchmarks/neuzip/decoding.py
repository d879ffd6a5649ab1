"""How fast one core decodes a model's matrices, in MB of plain weights a second of CPU time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import Tensor

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import Coding, coding
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.modules import CompressedModule
from deltahub.methods.inference.sources import Source, compressed

_TUNE: Final = "tune"


@dataclass(frozen=True)
class Speed:
    """megabytes_s: the median of the rounds; least, most: the slowest and the fastest."""

    name: str
    megabytes_s: float
    least: float
    most: float


@dataclass(frozen=True)
class Case:
    """A way to code, and the mantissa bits to read; None for all."""

    name: str
    how: Coding
    read: int | None = None


def cases() -> list[Case]:
    """The three bits, as one part and with lower levels, which are planes of their own."""
    bf16, lower = DType.BF16, (0, 1)
    return [
        Case("lossless", coding(bf16, 7, 0)),
        Case("lossless, with level 3", coding(bf16, 7, 0, (3,))),
        Case("lossless, with level 3, read at 3", coding(bf16, 7, 0, (3,)), 3),
        Case("3 bits", coding(bf16, 3, 0)),
        Case("3 bits, block 512", coding(bf16, 3, 512)),
        Case("3 bits, with levels 0 and 1", coding(bf16, 3, 0, lower)),
        Case("3 bits, with levels 0 and 1, read at 1", coding(bf16, 3, 0, lower), 1),
        Case("1 bit", coding(bf16, 1, 0)),
    ]


def measure(matrices: Mapping[str, Tensor], rounds: int, seconds: float) -> list[Speed]:
    """Of each case: `rounds` figures, each of at least `seconds` of CPU time."""
    found = []
    for case in cases():
        sources = [
            Source(compressed(name, weight, case.how), case.read)
            for name, weight in matrices.items()
        ]
        found.append(_speed(case.name, sources, rounds, seconds))
    return found


def measure_family(base: Path, fine_tune: Path, rounds: int, seconds: float) -> list[Speed]:
    """Of the matrices of a base, and of a fine-tune that is kept as differences from it."""
    family = Family(base, {_TUNE: fine_tune}, prefetch=False)
    sources = [each.source for each in family.model.modules() if isinstance(each, CompressedModule)]
    found = [_speed("base of a family", sources, rounds, seconds)]
    family.use(_TUNE)
    return [*found, _speed("fine-tune, from base and delta", sources, rounds, seconds)]


def _speed(name: str, sources: Sequence[Source], rounds: int, seconds: float) -> Speed:
    room = torch.empty(max(each.plain_bytes for each in sources), dtype=torch.uint8)
    outs = [room[: each.plain_bytes].view(each.dtype).view(each.shape) for each in sources]

    def decode() -> None:
        for source, out in zip(sources, outs, strict=True):
            source.decode_into(out)

    n_bytes = sum(each.plain_bytes for each in sources)
    decode()
    figures = [n_bytes / _cpu_seconds(decode, seconds) / 1e6 for _ in range(rounds)]
    return Speed(name, median(figures), min(figures), max(figures))


def _cpu_seconds(work: Callable[[], None], least: float) -> float:
    """CPU seconds of one call, on the mean over as many as take `least`."""
    began, n = time.process_time(), 0
    while (spent := time.process_time() - began) < least:
        work()
        n += 1
    return spent / n
