"""The native kernels of the search for low-rank products, in NumPy."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words, predict

F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.signedinteger[Any]]

_N_SYMBOLS: Final = 256
_MANTISSA: Final = 23  # bits of a float32
_LINEAR: Final = 16  # magnitudes with their own symbol
_CLASSES_PER_OCTAVE: Final = 2


@dataclass(frozen=True)
class Rule:
    """The targets of a least-squares fit of products to words.

    octaves: words finer than 2^-octaves of the typical one get no more weight.
    margin: None if the target is the difference from the base. Else the target is the interval
    that the word was rounded from, without this share of an ulp at both ends.
    satisfied_weight: share of a word's weight if its product is in the interval.
    """

    octaves: int
    margin: float | None = None
    satisfied_weight: float = 0.0


def deltas(source: Words, base: Words) -> Integers:
    """The number of words from each base word to its source word, in the order of floats."""
    bits = 8 * base.itemsize
    below_sign = (1 << (bits - 1)) - 1
    signed = np.dtype(f"i{base.itemsize}")
    sources, bases = source.view(signed), base.view(signed)
    wide = np.dtype(f"i{2 * base.itemsize}")
    moved: Integers = (sources ^ ((sources >> (bits - 1)) & below_sign)).astype(wide)
    moved -= bases ^ ((bases >> (bits - 1)) & below_sign)
    np.negative(moved, out=moved, where=bases < 0)
    return moved


def floats_of(dtype: DType, words: Words) -> Floats:
    """The values of the words, as float64."""
    if dtype is DType.BF16:
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return words.view(np.float16 if dtype is DType.F16 else np.float32).astype(np.float64)


def subtracted(dtype: DType, words: Words, base: Words) -> Floats:
    """words - base, in float64; 0 where either is not a number."""
    floats = FLOAT_WORDS[dtype]
    are_numbers = (floats.exponents(words) < floats.max_exponent) & (
        floats.exponents(base) < floats.max_exponent
    )
    with np.errstate(all="ignore"):
        return np.where(are_numbers, floats_of(dtype, words) - floats_of(dtype, base), 0.0)


def estimated_bits(dtype: DType, words: Words, base: Words, low_rank: LowRank) -> float:
    predicted = predict(dtype, base, low_rank)
    exponents = np.maximum(FLOAT_WORDS[dtype].exponents(predicted), 1).astype(np.int32)
    d = deltas(words, predicted)
    return residual_bits(d, scale_classes(d, exponents))


def residual_bits(d: Integers, classes: Integers) -> float:
    """The entropy of the differences d, with one distribution for each class.

    d: number of words from each prediction to its word. classes: of d's shape, see scale_classes.
    """
    symbols, widths = _symbols(d)
    keys = (classes - classes.min()) * np.int32(_N_SYMBOLS) + symbols
    table = _table(keys.ravel())
    of_class = table.sum(axis=1)
    bits = _information(of_class) - _information(table)
    # The cost for an adaptive code to learn the distributions.
    learning = np.log2(of_class + 1) * (table > 0).sum(axis=1) / 2
    return (
        bits + float(np.minimum(learning, 4 * of_class).sum()) + float(widths.sum(dtype=np.int64))
    )


def scale_classes(d: Integers, exponents: I32) -> I32:
    """Classes of similar expected magnitude, from exponent fields and the rows' mean magnitudes.

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
    """The entropy of factors, with one distribution for each column (component).

    values: (n, rank). Trailing zero bits that all values of a column share cost nothing.
    """
    digits = np.bitwise_or.reduce(values, axis=0).astype(np.int32)
    strides = np.log2(np.maximum(digits & -digits, 1)).astype(np.int32)
    components = np.arange(values.shape[1], dtype=np.int32)
    return residual_bits(values >> strides, np.broadcast_to(components, values.shape))


def _cells(magnitudes: Integers) -> tuple[Integers, Integers]:
    """The alphabet's cell of each magnitude, and its number of raw bits."""
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


def weighted_residuals(
    dtype: DType,
    words: Words,
    base: Words,
    products: Floats,
    typical: int,
    rule: Rule,
    is_rounded: bool,
) -> tuple[Floats, Floats]:
    """Weights of the words, and distances of their products from the targets times the weights."""
    floats = FLOAT_WORDS[dtype]
    below_first = floats.bias + floats.mantissa_bits
    exponents = np.maximum(floats.exponents(words), 1)
    residuals = subtracted(dtype, words, base)
    if rule.margin is None:
        if is_rounded:
            of_products = products.astype(np.float32).view(np.int32).astype(np.int64)
            of_products = (of_products >> _MANTISSA & 255) + floats.bias - 127
            exponents = np.maximum(exponents, of_products)
        weights = _power(2 * (typical - np.maximum(exponents, typical - rule.octaves)))
        residuals = residuals.astype(products.dtype)
        return weights, ((residuals - products) * weights).astype(np.float32)
    residuals, halves = (
        residuals.astype(np.float32),
        np.float32(0.5) * _power(exponents - below_first),
    )
    if is_rounded:
        residuals, halves = _before_rounding(floats.mantissa_bits, residuals, halves, words)
    residuals = residuals - products.astype(np.float32)
    finest = np.maximum(exponents, typical - rule.octaves)
    halves = np.maximum(halves - np.float32(rule.margin) * _power(finest - below_first), 0)
    residuals = residuals - np.clip(residuals, -halves, halves)
    weights = _power(2 * (typical - finest)) * (
        (residuals != 0) + np.float32(rule.satisfied_weight)
    )
    return weights, residuals * weights


def least_squares_step(
    dtype: DType, words: Words, base: Words, own: Floats, given: Floats, typical: int, rule: Rule
) -> NDArray[np.float64]:
    """The change of each row of own that brings own @ given closest to the targets."""
    n, rank = words.shape[1], own.shape[1]
    weights, residuals = weighted_residuals(
        dtype, words, base, own @ given, typical, rule, is_rounded=False
    )
    middle = (weights.astype(np.float32).view(np.uint32) >> 20).sum(axis=1) // n << 20
    middles = middle.astype(np.uint32).view(np.float32)
    is_fine = weights >= (middles * np.float32(min(4, n / (4 * rank))))[:, None]
    x = given.astype(np.float64).T
    moves = np.empty(own.shape)
    for row in range(len(words)):
        fine, coarse = weights[row] * is_fine[row], weights[row] * ~is_fine[row]
        squares = (x.T * fine) @ x + coarse.sum() * (x.T @ x) / n
        squares += np.eye(rank) * 1e-7 * squares.trace() / rank
        moves[row] = np.linalg.solve(squares, x.T @ residuals[row].astype(np.float64))
    return moves


def _power(exponents: Integers) -> NDArray[np.float32]:
    """Powers of two, limited to normal float32."""
    return np.ldexp(np.float32(1), np.clip(exponents, -126, 127).astype(np.int32))


def _before_rounding(
    mantissa_bits: int, differences: Floats, halves: Floats, words: Words
) -> tuple[Floats, Floats]:
    """Middles and halves of the intervals of unrounded products. A product is rounded to the dtype
    first; the result is within half an ulp of the difference. For a tie the word must be even."""
    dropped = _MANTISSA - mantissa_bits
    if dropped == 0:
        return differences, halves
    unit = 1 << dropped
    is_odd = (words & 1).astype(np.int64)
    low = -(-(_ordinals(differences - halves) + is_odd) // unit) * unit - unit // 2
    high = (_ordinals(differences + halves) - is_odd) // unit * unit + unit // 2
    lowest, highest = _from_ordinals(low), _from_ordinals(high)
    return (highest + lowest) / 2, (highest - lowest) / 2


def _ordinals(numbers: Floats) -> NDArray[np.int64]:
    """The number of float32 numbers between zero and each one, with its sign."""
    bits = numbers.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits + (1 << 31)), bits)


def _from_ordinals(counts: NDArray[np.int64]) -> Floats:
    magnitudes = np.abs(counts).astype(np.int32).view(np.float32)
    return np.where(counts < 0, -magnitudes, magnitudes)
