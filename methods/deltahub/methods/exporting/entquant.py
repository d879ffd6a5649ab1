"""EntQuant: steps of rows so that whole numbers have a low entropy, and a weight changes little.

Putzky, Genzel, Mollenhauer et al., "Float8@2bits: Entropy Coding Enables Data-Free Model
Compression", arXiv 2601.22787. The steps s of a matrix W minimize

    |W - s Q(W / s)|_1 / |W|_1  +  penalty x mean(|Q(W / s)|) / 128

where Q rounds to whole numbers up to 127. The second term stands for the entropy: small numbers are
few, and frequent. The sum is one of terms of each row, so that each step is found alone. The paper
descends a gradient that it passes through the rounding; one unknown a row can be searched, which
needs no gradient. The paper has tables of penalties for 4, 3 and 2 bits; here the penalty is found
from the entropies of a sample of the model, so that the bits asked for are met.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import widen_words
from deltahub.codecs.exports.coding import AnyCoding, Coding, encode_slice
from deltahub.codecs.exports.integers import (
    MOST,
    IntegerCoding,
    Words,
    encode_integers,
    integers_of,
    nearest_words,
)
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.errors import CannotExport

Floats = npt.NDArray[np.float32]

# Penalties that are tried: from 7 bits a weight to less than one.
PENALTIES: Final = tuple(2.0**i for i in range(-4, 15))
# Elements of a matrix that stand for it: some whole rows, evenly spread.
SAMPLE_ELEMENTS: Final = 1 << 16
# These rows lie in so many places, because each place is read by itself.
_RUNS: Final = 16
# Factors on a first guess of a step: four octaves around it, then finer around the best.
_COARSE: Final = tuple(2.0 ** (i / 4) for i in range(-8, 9))
_FINE: Final = tuple(2.0 ** (i / 16) for i in range(-3, 4))
# Elements that are searched at once, so that what lies between stays in the cache.
_CHUNK: Final = 1 << 16


@dataclass(frozen=True)
class Sample:
    """What a sample of a matrix says: elements of the whole matrix, the mean of magnitudes, and the
    bits that an element takes at each of PENALTIES.
    """

    count: int
    mean: float
    bits: tuple[float, ...]


@dataclass(frozen=True)
class Rounding:
    """How a matrix is rounded. mean: of magnitudes, by its sample."""

    coding: IntegerCoding
    mean: float
    penalty: float

    def encode(self, words: memoryview, threads: int = 1) -> tuple[dict[str, bytes], memoryview]:
        """As encode_slice: (part -> frame, the elements as a reader gets them)."""
        steps = self.steps(floats_of(self.coding, words))
        return encode_integers(self.coding, words, steps.tobytes(), threads)

    def steps(self, values: Floats) -> Words:
        """A word for each row."""
        return nearest_words(self.coding.dtype, best_steps(values, self.mean, self.penalty))


# How a weight is encoded.
Encoding = Coding | Rounding


def coding_of(how: Encoding) -> AnyCoding:
    return how.coding if isinstance(how, Rounding) else how


def encode_words(
    how: Encoding, words: memoryview, threads: int = 1
) -> tuple[dict[str, bytes], bytearray | memoryview]:
    """As encode_slice."""
    if isinstance(how, Rounding):
        return how.encode(words, threads)
    return encode_slice(how, words, threads)


def best_steps(values: Floats, mean: float, penalty: float) -> npt.NDArray[np.float64]:
    """The step of each row that costs least; 0 for a row of zeros.

    mean: of the magnitudes of all of the matrix. No step is so small that an element would exceed
    127 steps: outliers keep their size.
    """
    rows, columns = values.shape
    steps = np.zeros(rows)
    n_rows = max(1, _CHUNK // columns)
    for row in range(0, rows, n_rows):
        some = slice(row, row + n_rows)
        steps[some] = _best_steps(values[some], mean, penalty / 128)
    return steps


def _best_steps(values: Floats, mean: float, price: float) -> npt.NDArray[np.float64]:
    magnitudes = np.abs(values)
    largest = magnitudes.max(axis=1, keepdims=True)
    is_zero = largest[:, 0] == 0
    # Relative to its largest element, no row is too small or too large for a float.
    magnitudes /= np.where(is_zero[:, np.newaxis], 1, largest)
    weights = largest[:, 0].astype(np.float64) / mean
    # A step far below a row's magnitudes changes its elements by a quarter of it on the mean, and
    # makes numbers of the mean magnitude over it: this guess is where the sum of both is least.
    means = magnitudes.mean(axis=1, dtype=np.float64)
    best = np.sqrt(4 * price * means / np.where(is_zero, 1, weights))
    for factors in (_COARSE, _FINE):
        centre, costs = best, np.full(len(best), np.inf)
        for factor in factors:
            steps = np.clip(centre * factor, 1 / MOST, 2)
            cost = _cost(magnitudes, steps, weights, price)
            is_better = cost < costs
            best, costs = np.where(is_better, steps, best), np.minimum(cost, costs)
    found: npt.NDArray[np.float64] = best * largest[:, 0]
    return found


def _cost(
    magnitudes: Floats,
    steps: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    price: float,
) -> npt.NDArray[np.float64]:
    """What each row adds to the sum that is minimized, times the elements of the matrix.

    magnitudes, steps: relative to the row's largest element. weights: this element, relative to the
    mean of the matrix.
    """
    scaled = magnitudes * (1 / steps)[:, np.newaxis].astype(np.float32)
    numbers = np.rint(scaled)
    total = numbers.sum(axis=1, dtype=np.float64)
    np.subtract(scaled, numbers, out=scaled)
    np.abs(scaled, out=scaled)
    cost: npt.NDArray[np.float64] = weights * steps * scaled.sum(axis=1, dtype=np.float64)
    cost += price * total
    return cost


def floats_of(how: IntegerCoding, words: memoryview) -> Floats:
    """The elements of whole rows."""
    wide = np.empty(len(words) // how.dtype.itemsize)
    widen_words(WORD_KINDS[how.dtype], words, wide)
    return wide.astype(np.float32).reshape(-1, how.columns)


def sample_rows(rows: int, columns: int) -> list[tuple[int, int]]:
    """(first row, number of rows) of the runs of rows that stand for a matrix, ascending."""
    n_rows = min(rows, max(1, SAMPLE_ELEMENTS // columns))
    n_runs = 1 if n_rows == rows else min(n_rows, _RUNS)
    length = n_rows // n_runs
    return [(i * rows // n_runs, length) for i in range(n_runs)]


def measure_sample(how: IntegerCoding, words: memoryview, count: int) -> Sample:
    """What a matrix of `count` elements takes, by some rows of it.

    The entropy of large matrices is met within some hundredths of a bit. Headers and tables of a
    small one count, so that a matrix which is its own sample is encoded.
    """
    values, bits = floats_of(how, words), []
    mean = float(np.abs(values).mean(dtype=np.float64)) or 1.0
    for penalty in PENALTIES:
        steps = Rounding(how, mean, penalty).steps(values)
        if values.size == count:
            parts, _ = encode_integers(how, words, steps.tobytes())
            bits.append(8 * sum(map(len, parts.values())) / count)
        else:
            numbers = integers_of(how, words, steps)
            bits.append(entropy(numbers) + 8 * how.dtype.itemsize / how.columns)
    return Sample(count, mean, tuple(bits))


def entropy(numbers: npt.NDArray[np.int8]) -> float:
    """Bits a number, if each were coded by its frequency alone."""
    counts = np.bincount(numbers.reshape(-1).view(np.uint8), minlength=256)
    shares = counts[counts > 0] / numbers.size
    return float(-(shares @ np.log2(shares)))


def choose_penalty(samples: Sequence[Sample], bits: float) -> float:
    """The penalty with which all matrices together take `bits` bits an element.

    CannotExport if no penalty does.
    """
    counts = np.array([each.count for each in samples], np.float64)
    rates = np.average(np.array([each.bits for each in samples]), axis=0, weights=counts)
    if not rates[-1] <= bits <= rates[0]:
        raise CannotExport(
            f"the weights take {rates[-1]:.2f} to {rates[0]:.2f} bits an element, and not"
            f" {bits:g}: export them without method"
        )
    # The first penalty with no more bits; between two, bits fall by about the same for each octave.
    i = int(np.argmax(rates <= bits))
    if i == 0:
        return PENALTIES[0]
    share = (rates[i - 1] - bits) / (rates[i - 1] - rates[i])
    return float(PENALTIES[i - 1] * (PENALTIES[i] / PENALTIES[i - 1]) ** share)
