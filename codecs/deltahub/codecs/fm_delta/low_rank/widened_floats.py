"""Low rank in F32 words that were of a shorter dtype before: found there, told in their own units.

Nothing here is part of the format.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words
from deltahub.codecs.fm_delta.low_rank.refine import Effort
from deltahub.codecs.fm_delta.low_rank.search import fit_low_rank

_CHUNK: Final = 1 << 18  # words


class ShorterPair(NamedTuple):
    """Words and their base in the dtype that they have been of; all come back from it."""

    dtype: DType
    source: Words
    base: Words


def shorter_pair(dtype: DType, stride: int, source: Words, base: Words) -> ShorterPair | None:
    """Words in the float of 16 bits with as many digits; None where there is none for all.

    source, base: 1-D words of the dtype, whose `stride` last digits are all zero.
    """
    if dtype is not DType.F32:
        return None
    left = FLOAT_WORDS[DType.F32].mantissa_bits - stride
    for shorter in (DType.BF16, DType.F16):
        if left <= FLOAT_WORDS[shorter].mantissa_bits:
            pair = [_shortened(shorter, words) for words in (source, base)]
            if pair[0] is not None and pair[1] is not None:
                return ShorterPair(shorter, pair[0], pair[1])
    return None


def fit_strided(pair: ShorterPair, rows: int, columns: int, effort: Effort) -> LowRank | None:
    """Factors for the F32 words, as fit_low_rank finds them for the shorter ones.

    pair: rows * columns words each. None where no factors pay, or F32 has no exponent for their
    unit.
    """
    found = fit_low_rank(pair.dtype, pair.source, pair.base, rows, columns, effort)
    if found is None:
        return None
    own = FLOAT_WORDS[DType.F32]
    floor = found.floor + own.unit_of_floor - FLOAT_WORDS[pair.dtype].unit_of_floor
    return replace(found, floor=floor) if 1 <= floor < own.max_exponent else None


@np.errstate(all="ignore")  # what overflows, or is no number, comes back as something else
def _shortened(shorter: DType, words: Words) -> Words | None:
    """F32 words in the shorter dtype; None where they do not all come back from it."""
    if shorter is DType.BF16:
        return words.view("<u2")[1::2].copy()
    halves = np.empty(words.size, "<f2")
    for begin in range(0, words.size, _CHUNK):
        chunk = words[begin : begin + _CHUNK]
        halves[begin : begin + _CHUNK] = chunk.view("<f4")
        if not np.array_equal(halves[begin : begin + _CHUNK].astype("<f4").view("<u4"), chunk):
            return None
    return halves.view("<u2")
