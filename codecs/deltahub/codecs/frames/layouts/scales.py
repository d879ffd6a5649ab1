"""Finds the scales by which a tensor was rounded to FP8 from elements like those of its base.

Files keep scales in tensors of many names and shapes, as numbers to multiply or to divide by. The
elements themselves tell them well enough: each one allows its multiplier an interval, and the one
that most elements allow is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import TensorInfo
from deltahub.codecs.frames.views.scaled import (
    MAX_EXPONENT,
    MAX_MULTIPLIERS,
    MIN_EXPONENT,
    Scaled,
    scale,
)

# Rows and columns of the blocks that DeepSeek's files scale, and others since.
BLOCK: Final = 128
# Elements of a group that are looked at, and of few groups together: 1024 tell the multiplier to
# some 1e-4.
_LOOKED_AT: Final = 1024
_LOOKED_AT_TOGETHER: Final = 1 << 16
# Bands of rows that tell which groups have one scale: at most so many, and of so many elements.
_BANDS: Final = 4
_BAND_ELEMENTS: Final = 1 << 20
# Of which rows the share of exact predictions is counted.
_EVERY_ROW: Final = 8
# Longer rows would take too much memory.
MAX_COLUMNS: Final = 1 << 15
# Finer groups must predict so many more of the elements exactly.
_MUST_GAIN: Final = 0.01

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

ReadRows = Callable[[int, int], tuple[U8, F32]]
"""read(first row, rows): the FP8 codes and the base's elements, each of shape (rows, columns)."""


@dataclass(frozen=True)
class _Groups:
    rows: int
    columns: int


def find_scales(info: TensorInfo, read: ReadRows) -> Scaled | None:
    """The view that predicts most of the tensor's elements from its base; None for a tensor with
    too many groups or too long rows. info: of an FP8 tensor of one dimension or more.

    Reads at most four bands of 128 rows of each group, and all rows where groups are smaller. Takes
    a few times the memory of a band: tens of mebibytes for the longest rows.
    """
    dtype = DType.from_name(info.dtype)
    columns = info.shape[-1]
    rows = info.count // columns
    if columns > MAX_COLUMNS:
        return None
    bands = [read(first, n) for first, n in _bands(0, rows, columns)]
    shares: list[tuple[_Groups, float]] = []
    for groups in _kinds(info.shape):
        if -(-rows // groups.rows) * -(-columns // groups.columns) <= MAX_MULTIPLIERS:
            of_bands = [_joined(bands)] if groups.rows >= rows else bands
            shares.append((groups, _share(of_bands, groups, dtype)))
    if not shares:
        return None
    best = max(share for _, share in shares)
    chosen = next(groups for groups, share in shares if share >= best - _MUST_GAIN)
    parts: list[F64] = []
    for first in range(0, rows, max(chosen.rows, BLOCK)):
        n = min(max(chosen.rows, BLOCK), rows - first)
        looked_at = [read(begin, some) for begin, some in _bands(first, n, columns)]
        parts.append(_fit(*_joined(looked_at), chosen, dtype))
    multipliers = np.concatenate([part.reshape(-1) for part in parts]).astype("<f4")
    return Scaled(columns, chosen.rows, chosen.columns, multipliers.tobytes())


def _bands(first: int, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of bands among these rows, each at a multiple of BLOCK from the first."""
    n = -(-rows // BLOCK)
    n_bands = max(1, min(_BANDS, _BAND_ELEMENTS // (BLOCK * columns)))
    for number in sorted({n * i // n_bands for i in range(n_bands)}):
        yield first + number * BLOCK, min(BLOCK, rows - number * BLOCK)


def _kinds(shape: Sequence[int]) -> Iterator[_Groups]:
    """The groups that files scale, the largest first: tensors, experts, blocks, rows."""
    columns = shape[-1]
    rows = prod(shape[:-1])
    yield _Groups(rows, columns)
    if len(shape) < 2:
        return
    if len(shape) > 2 and shape[-2] % BLOCK == 0:
        yield _Groups(shape[-2], columns)
    if columns > BLOCK and (len(shape) == 2 or shape[-2] % BLOCK == 0):
        yield _Groups(BLOCK, BLOCK)
    yield _Groups(1, columns)


def _share(bands: Sequence[tuple[U8, F32]], groups: _Groups, dtype: DType) -> float:
    """The share of elements of the bands that the best multipliers predict exactly."""
    n_equal, n = 0, 0
    for codes, near in bands:
        multipliers = _fit(codes, near, groups, dtype).astype(np.float32)
        rows = np.arange(0, len(codes), _EVERY_ROW)
        columns = np.arange(codes.shape[1]) // groups.columns
        of_each = multipliers[rows[:, None] // groups.rows, columns[None, :]].reshape(-1)
        words = near[rows].reshape(-1).view(np.uint32)
        predicted = scale(words, of_each.view(np.uint32), dtype)
        n_equal += int((predicted == codes[rows].reshape(-1)).sum())
        n += len(words)
    return n_equal / n


def _joined(bands: Sequence[tuple[U8, F32]]) -> tuple[U8, F32]:
    return np.concatenate([codes for codes, _ in bands]), np.concatenate([b for _, b in bands])


def _fit(codes: U8, near: F32, groups: _Groups, dtype: DType) -> F64:
    """The multipliers of the groups of these rows: shape (groups down, groups across)."""
    down: list[F64] = []
    for rows in _evenly(len(codes), groups.rows):
        across: list[F64] = []
        for columns in _evenly(codes.shape[1], groups.columns):
            some = _blocks(codes[rows, columns], groups.rows, groups.columns)
            base = _blocks(near[rows, columns], groups.rows, groups.columns)
            n_groups = some.shape[0] * some.shape[1]
            step = max(1, some.shape[-1] // max(_LOOKED_AT, _LOOKED_AT_TOGETHER // n_groups))
            some, base = some[:, :, ::step], base[:, :, ::step]
            n = some.shape[-1]
            found = _fit_rows(some.reshape(-1, n), base.reshape(-1, n), dtype)
            across.append(found.reshape(some.shape[:2]))
        down.append(np.concatenate(across, axis=1))
    return np.concatenate(down)


def _evenly(n: int, size: int) -> Iterator[slice]:
    """The part of a range that whole groups fill, and what is left of it."""
    whole = n // size * size
    if whole:
        yield slice(0, whole)
    if whole < n:
        yield slice(whole, n)


def _blocks(words: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    """Blocks of a matrix: shape (blocks down, blocks across, elements of one)."""
    rows, columns = min(rows, len(words)), min(columns, words.shape[1])
    down, across = len(words) // rows, words.shape[1] // columns
    divided = words.reshape(down, rows, across, columns).transpose(0, 2, 1, 3)
    return divided.reshape(down, across, rows * columns)


def _fit_rows(codes: U8, near: F32, dtype: DType) -> F64:
    """One multiplier for each row, shape (rows,): the one that most elements of the row allow."""
    lower, upper = _intervals(dtype)
    magnitude = np.abs(near).astype(np.float64)
    tells = (codes >> 7) == np.signbit(near)
    tells &= np.isfinite(magnitude) & (magnitude > 0) & np.isfinite(lower[codes & 0x7F])
    divided = np.where(tells, magnitude, 1.0)
    begins = np.where(tells, lower[codes & 0x7F] / divided, np.inf)
    ends = np.where(tells, upper[codes & 0x7F] / divided, np.inf)
    edges = np.concatenate([begins, ends], axis=1)
    order = np.argsort(edges, axis=1, kind="stable")  # where both are equal, begins come first
    begins_there = np.where(order < codes.shape[1], 1, -1)
    begins_there[~np.isfinite(np.take_along_axis(edges, order, 1))] = 0
    n_allowing = np.cumsum(begins_there, axis=1)
    best = n_allowing[:, :-1].argmax(axis=1)
    sorted_edges = np.take_along_axis(edges, order, 1)
    each = np.arange(len(codes))
    left, right = sorted_edges[each, best], sorted_edges[each, best + 1]
    middle = np.where(np.isfinite(right), (left + right) / 2, left)
    smallest, largest = 2.0 ** (MIN_EXPONENT - 127), 2.0 ** (MAX_EXPONENT - 127)
    is_known = np.isfinite(middle) & (n_allowing[each, best] > 0)
    return np.asarray(np.clip(np.where(is_known, middle, 1.0), smallest, largest))


@cache
def _intervals(dtype: DType) -> tuple[F64, F64]:
    """For each code without its sign, the smallest and the largest number that rounds to it."""
    values = fp8_values(dtype)[:128].astype(np.float64)
    finite = values[np.isfinite(values)]
    middles = (finite[1:] + finite[:-1]) / 2
    lower, upper = np.full(128, np.inf), np.full(128, np.inf)
    lower[: len(finite)] = [0.0, *middles]
    upper[: len(finite)] = [*middles, np.inf]
    return lower, upper


@cache
def fp8_values(dtype: DType) -> F32:
    """The number that each code stands for: shape (256,)."""
    bits, bias = (3, 7) if dtype is DType.F8_E4M3 else (2, 15)
    codes = np.arange(128)
    exponent, mantissa = codes >> bits, codes & ((1 << bits) - 1)
    values = np.where(
        exponent > 0,
        (1 + mantissa / (1 << bits)) * 2.0 ** (exponent - bias),
        mantissa / (1 << bits) * 2.0 ** (1 - bias),
    )
    if dtype is DType.F8_E4M3:
        values[127] = np.nan
    else:
        values[124], values[125:] = np.inf, np.nan
    return np.concatenate([values, -values]).astype(np.float32)
