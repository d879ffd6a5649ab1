"""About how many bits words take after a prediction, and factors beside them."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.low_rank import Integers
from deltahub.codecs.low_rank_pair import I32

_N_SYMBOLS: Final = 256
_LINEAR: Final = 16  # magnitudes with a symbol of their own
_CLASSES_PER_OCTAVE: Final = 2


def residual_bits(d: Integers, classes: Integers) -> float:
    """The entropy of the numbers d, each class with a distribution of its own.

    d: how many words each word is from its prediction. classes: of d's shape, see scale_classes.
    """
    symbols, widths = _symbols(d)
    keys = (classes - classes.min()) * np.int32(_N_SYMBOLS) + symbols
    table = _table(keys.ravel())
    of_class = table.sum(axis=1)
    bits = _information(of_class) - _information(table)
    # What an adaptive code would pay to learn the distributions.
    learning = np.log2(of_class + 1) * (table > 0).sum(axis=1) / 2
    return (
        bits + float(np.minimum(learning, 4 * of_class).sum()) + float(widths.sum(dtype=np.int64))
    )


def scale_classes(d: Integers, exponents: I32) -> I32:
    """Classes of like expected magnitude, from the exponent fields and the rows' mean magnitudes.

    d, exponents: (rows, columns); exponents at least 1.
    """
    top = int(exponents.max())
    sizes = np.abs(d).astype(np.float32)
    sizes *= np.ldexp(np.float32(1), np.maximum(np.arange(top + 1) - top, -60)).take(exponents)
    rows = np.log2(sizes.mean(axis=1, keepdims=True, dtype=np.float64) + 2.0**-40)
    expected = (rows + top).astype(np.float32) - exponents
    np.clip(expected, -4, 40, out=expected)
    expected *= _CLASSES_PER_OCTAVE
    classes: I32 = np.rint(expected).astype(np.int32)
    return classes


def factor_bits(values: NDArray[np.int16]) -> float:
    """The entropy of factors, each column one component with a distribution of its own.

    values: (n, rank). The low digits that all values of a column have in common, 0, are free.
    """
    digits = np.bitwise_or.reduce(values, axis=0).astype(np.int32)
    strides = np.log2(np.maximum(digits & -digits, 1)).astype(np.int32)
    components = np.arange(values.shape[1], dtype=np.int32)
    return residual_bits(values >> strides, np.broadcast_to(components, values.shape))


def _cells(magnitudes: Integers) -> tuple[Integers, Integers]:
    """Which cell of the alphabet each magnitude is in, and the raw digits it has there."""
    octave = np.frexp(np.maximum(magnitudes, 1).astype(np.float64))[1] - 1
    width = np.maximum(octave - 1, 0)
    coarse = _LINEAR + 2 * (octave - 4) + ((magnitudes >> width) & 1)
    is_small = magnitudes < _LINEAR
    cell = np.where(is_small, magnitudes, np.minimum(coarse, _N_SYMBOLS // 2 - 1))
    return cell.astype(np.uint8), np.where(is_small, 0, width).astype(np.uint8)


_KNOWN_CELLS, _KNOWN_WIDTHS = _cells(np.arange(1 << 12))


def _symbols(d: Integers) -> tuple[I32, Integers]:
    magnitudes = d ^ (d >> (8 * d.itemsize - 1))
    if magnitudes.max(initial=0) < len(_KNOWN_CELLS):
        cells, widths = _KNOWN_CELLS.take(magnitudes), _KNOWN_WIDTHS.take(magnitudes)
    else:
        cells, widths = _cells(magnitudes)
    symbols = cells.astype(np.int32)
    symbols *= 2
    symbols += d < 0
    return symbols, widths


def _table(keys: Integers) -> NDArray[np.float64]:
    counts = np.bincount(keys, minlength=_N_SYMBOLS)
    padded = np.zeros(-(-len(counts) // _N_SYMBOLS) * _N_SYMBOLS)
    padded[: len(counts)] = counts
    return padded.reshape(-1, _N_SYMBOLS)


def _information(counts: NDArray[Any]) -> float:
    some = counts[counts > 0]
    return float((some * np.log2(some)).sum())
