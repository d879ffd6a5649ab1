"""What a weight loses when it is rounded, measured on its elements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltahub.codecs._native import widen_words
from deltahub.codecs.exports.coding import AnyCoding, Coding, encode_slice
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.exporting.budget import Trial

# Elements that are compared at once, as doubles.
_COMPARED: Final = 1 << 19


@dataclass
class Loss:
    """What is lost so far: sums of squares, and the largest relative change of the elements that
    the bound is for.
    """

    lost: float = 0.0
    whole: float = 0.0
    largest: float = 0.0

    @property
    def error(self) -> float:
        """Relative error, of Frobenius norms."""
        return float(np.sqrt(self.lost / self.whole)) if self.whole else 0.0

    def add(self, how: AnyCoding, words: memoryview, decoded: memoryview | bytearray) -> None:
        if how.is_lossless:
            return
        size = _COMPARED * how.dtype.itemsize
        for begin in range(0, len(words), size):
            some = slice(begin, begin + size)
            self._add(how, words[some], memoryview(decoded)[some])

    def _add(self, how: AnyCoding, words: memoryview, decoded: memoryview) -> None:
        kind = WORD_KINDS[how.dtype]
        count = len(words) // how.dtype.itemsize
        before, after = np.empty(count), np.empty(count)
        widen_words(kind, words, before)
        widen_words(kind, decoded, after)
        np.subtract(after, before, out=after)
        self.lost += float(after @ after)
        self.whole += float(before @ before)
        np.abs(before, out=before)
        # Below the smallest normal number the bound is absolute. A block's factor is below two.
        normal = before >= _SMALLEST[how.dtype.name] * (2 if how.block else 1)
        ratios = np.abs(after[normal]) / before[normal]
        self.largest = max(self.largest, float(ratios.max(initial=0.0)))


_SMALLEST: Final = {"BF16": 2.0**-126, "F16": 2.0**-14, "F32": 2.0**-126}


def measure_trials(
    hows: Sequence[Coding], slices: Iterable[memoryview], threads: int = 1
) -> list[Trial]:
    """What a weight takes and loses by each coding. slices: its finite elements, a slice at a time,
    as encode_slice takes them.
    """
    losses, sizes = [Loss() for _ in hows], [0] * len(hows)
    for words in slices:
        for i, how in enumerate(hows):
            frames, decoded = encode_slice(how, words, threads)
            losses[i].add(how, words, decoded)
            sizes[i] += sum(map(len, frames.values()))
    return [
        Trial(how.bits, size, loss.error)
        for how, size, loss in zip(hows, sizes, losses, strict=True)
    ]
