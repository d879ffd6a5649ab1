"""Finds thin factors of small integers that predict fine-tuned words from base words.

Native code searches, and nothing of it is part of the format. It sketches the difference of the two
tensors by random projections; it keeps the strongest components while they save more than their
factors take, and refines those of a merged adapter.
"""

from typing import NamedTuple

import numpy as np

from deltahub.codecs._native import find_low_rank
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS


class FoundProduct(NamedTuple):
    """is_widened: the words are F32 that a float of 16 bits has, too; it was found in these."""

    low_rank: LowRank
    is_widened: bool


def find_product(
    dtype: DType,
    source: Words,
    base: Words,
    rows: int,
    columns: int,
    effort: Effort = Effort.DEFAULT,
) -> FoundProduct | None:
    """Factors that make `source` smaller given `base`, or None where none pay.

    source, base: rows * columns words, unsigned. effort: default or max. The same for the same
    input, on every machine and for any number of threads.
    """
    if dtype not in FLOAT_WORDS:
        return None
    words, near = source.reshape(rows, columns), base.reshape(rows, columns)
    left, right, floor, is_rounded, is_widened = find_low_rank(
        WORD_KINDS[dtype], words, near, int(effort)
    )
    if not left:
        return None
    factors = [np.frombuffer(factor, np.int16) for factor in (left, right)]
    low_rank = LowRank(
        factors[0].reshape(rows, -1), factors[1].reshape(-1, columns), floor, is_rounded
    )
    return FoundProduct(low_rank, is_widened)
