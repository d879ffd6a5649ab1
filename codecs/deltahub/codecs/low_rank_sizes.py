"""About how many bits words take after a prediction, and factors beside them."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.low_rank import I64

_N_SYMBOLS: Final = 256
_LINEAR: Final = 16  # magnitudes with a symbol of their own
_CLASSES_PER_OCTAVE: Final = 2


def residual_bits(d: I64, classes: I64) -> float:
    """The entropy of the numbers d, each class with a distribution of its own.

    d: how many words each word is from its prediction. classes: of d's shape, see scale_classes.
    """
    symbols, raw_bits = _symbols(d)
    keys = (classes - classes.min()).ravel() * _N_SYMBOLS + symbols.ravel()
    table = _table(keys)
    of_class = table.sum(axis=1)
    bits = _information(of_class) - _information(table)
    # What an adaptive code would pay to learn the distributions.
    learning = np.log2(of_class + 1) * (table > 0).sum(axis=1) / 2
    return bits + float(np.minimum(learning, 4 * of_class).sum()) + float(raw_bits.sum())


def scale_classes(d: I64, exponents: I64) -> I64:
    """Classes of like expected magnitude, from the exponent fields and the rows' mean magnitudes.

    d, exponents: (rows, columns).
    """
    exponents = np.maximum(exponents, 1)
    top = exponents.max()
    sizes = np.ldexp(np.abs(d).astype(np.float64), np.maximum(exponents - top, -60))
    row = np.log2(sizes.mean(axis=1, keepdims=True) + 2.0**-40)
    expected = row + (top - exponents)
    classes: I64 = np.rint(np.clip(expected, -4, 40) * _CLASSES_PER_OCTAVE).astype(np.int64)
    return classes


def factor_bits(values: NDArray[np.int16]) -> float:
    """The entropy of factors, each column one component with a distribution of its own.

    values: (n, rank).
    """
    return sum(residual_bits(column, np.zeros_like(column)) for column in values.T.astype(np.int64))


def _symbols(d: I64) -> tuple[I64, I64]:
    magnitude = np.where(d < 0, ~d, d)
    octave = np.frexp(np.maximum(magnitude, 1).astype(np.float64))[1].astype(np.int64) - 1
    width = np.maximum(octave - 1, 0)
    coarse = _LINEAR + 2 * (octave - 4) + ((magnitude >> width) & 1)
    is_small = magnitude < _LINEAR
    cell = np.where(is_small, magnitude, np.minimum(coarse, _N_SYMBOLS // 2 - 1))
    return 2 * cell + (d < 0), np.where(is_small, 0, width)


def _table(keys: I64) -> NDArray[np.float64]:
    counts = np.bincount(keys, minlength=_N_SYMBOLS)
    padded = np.zeros(-(-len(counts) // _N_SYMBOLS) * _N_SYMBOLS)
    padded[: len(counts)] = counts
    return padded.reshape(-1, _N_SYMBOLS)


def _information(counts: NDArray[Any]) -> float:
    some = counts[counts > 0]
    return float((some * np.log2(some)).sum())
