"""What a method makes of one tensor, or of a part of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import narrow_doubles, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.kinds.merge import MergeArguments, Static
from deltahub.methods.merging.emr import Sums
from deltahub.methods.merging.static import DEFAULT_SCALES, ELEMENTWISE, STATIC, Values, average
from deltahub.methods.merging.switchable import bitdelta, low_rank, rank_within

MAIN: Final = "main"
STATIC_METHODS: Final = frozenset(get_args(Static))
# Methods whose outcome is another tensor than that of a model. emr makes masks (unify.py, mask.py),
# and lossless nothing.
REBUILT_METHODS: Final = frozenset({"bitdelta", "low-rank"})
# Share of a matrix's elements that the factors of a low-rank task have by default.
RANK_SHARE: Final = 0.1
# Matrices with a row for each token: singular values of all rows together say little, and methods
# that use them average these.
_TABLES: Final = re.compile(r"embed|lm_head|\bwte\b|\bwpe\b")


@dataclass(frozen=True)
class Outcome:
    """made: branch -> words. sums: of each task, as far as errors need them. n_infinite: words that
    the dtype cannot hold.
    """

    made: Mapping[str, memoryview]
    sums: Sequence[Sums]
    n_infinite: int


def takes_parts(method: str) -> bool:
    """Whether a method makes any part of a tensor from the same part of the others."""
    return method in ELEMENTWISE


def outcome(
    arguments: MergeArguments,
    method: str,
    name: str,
    tensors: tuple[DType, tuple[int, ...], memoryview, Mapping[str, memoryview]],
) -> Outcome:
    """What the method makes of a tensor. tensors: dtype, shape, the base's words, each task's."""
    dtype, shape, base_words, task_words = tensors
    kind = WORD_KINDS[dtype]
    base = _values(kind, base_words, shape)
    vectors = {task: _values(kind, words, shape) - base for task, words in task_words.items()}
    made: dict[str, memoryview] = {}
    moved: dict[str, Values] = {}
    n_infinite = 0
    for ref, kept in _kept(arguments, method, name, vectors).items():
        words = memoryview(bytearray(len(base_words)))
        n_infinite += narrow_doubles(kind, (base + kept).ravel(), words)
        made[ref] = words
        moved[ref] = _values(kind, words, shape) - base
    sums = [
        _sums(vector, moved[MAIN] if MAIN in moved else moved[task])
        for task, vector in vectors.items()
    ]
    return Outcome(made, sums, n_infinite)


def _kept(
    arguments: MergeArguments, method: str, name: str, vectors: Mapping[str, Values]
) -> dict[str, Values]:
    """Branch -> what is added to the base there."""
    if method in STATIC_METHODS:
        scale = arguments.scale or DEFAULT_SCALES[method]
        merge = STATIC[method]
        if method in ("iso-c", "tsv-m") and _TABLES.search(name):
            merge = average
        return {MAIN: scale * merge(list(vectors.values()), arguments.density)}
    if method == "bitdelta":
        return {task: bitdelta(vector) for task, vector in vectors.items()}
    shape = next(iter(vectors.values())).shape
    rank = arguments.rank or rank_within(shape, RANK_SHARE) if len(shape) == 2 else 1
    return {task: low_rank(vector, rank) for task, vector in vectors.items()}


def _values(kind: int, words: memoryview, shape: tuple[int, ...]) -> Values:
    out: npt.NDArray[np.float64] = np.empty(prod(shape), np.float64)
    widen_words(kind, words, out)
    return out.reshape(shape)


def _sums(vector: Values, made: Values) -> Sums:
    return Sums(
        size=vector.size,
        tau_l1=float(np.abs(vector).sum()),
        uni_l1=float(np.abs(made).sum()),
        product=float((vector * made).sum()),
        uni_l2=float((made * made).sum()),
        tau_l2=float((vector * vector).sum()),
        n_masked=int(np.count_nonzero(made)),
        n_changed=int(np.count_nonzero(vector)),
    )
