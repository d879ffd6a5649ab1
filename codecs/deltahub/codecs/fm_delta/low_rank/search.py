"""Finds thin factors of small integers that predict fine-tuned words from base words.

The search is native and not part of the format. A randomized SVD finds the strongest components of
the difference. They are kept while they save more than their factors take. The factors of a merged
adapter are refined.
"""

from typing import NamedTuple

import numpy as np

from deltahub.codecs._native import find_low_rank
from deltahub.codecs.dtypes import DType
from deltahub.codecs.fm_delta.low_rank.prediction import FLOAT_WORDS, LowRank, Words
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS


class FoundProduct(NamedTuple):
    """is_widened: the words are F32, and the product was found in them narrowed to BF16 or F16."""

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
    """Factors that make `source` smaller given `base`, or None if none pay.

    source, base: rows * columns words, unsigned. effort: default or max. The result depends only on
    the arguments, not on the machine or the number of threads.
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
