"""What an fm_delta prelude says: tables, classes and the predictions that all blocks share."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltahub.codecs.reference.bits import require
from deltahub.codecs.reference.coder import ESCAPES, Alphabet, Coder, Context, Table
from deltahub.codecs.reference.words import Words, signed

SIDE_BITS = 16  # side numbers and the offset
LARGEST_SCALE = 8191
FIRST_VERSION, STRIDED_VERSION = 1, 2
N_LINEAR = 16
N_CELLS = 40


def _cells() -> list[tuple[int, int]]:
    cells = []
    for cell in range(N_CELLS):
        mant, width = cell, 0
        if cell >= N_LINEAR:
            mant, width = 2 + cell % 2, (cell - N_LINEAR) // 2 + 3
        cells += [(mant, width), (-mant - 1, width)]
    return cells


# Numbers near zero have a symbol each; further out two symbols an octave, and a sign.
ALPHABET = Alphabet((*ESCAPES, *_cells()), stride=2)


@dataclass(frozen=True)
class Columns:
    """How large the corrections of a column are, one scale for each column of the frame."""

    context: Context
    scales: Sequence[int]


@dataclass(frozen=True)
class Staircase:
    """Steps that depend on a base word's mantissa alone, in the rows that are flagged."""

    bits: int  # the top bits of the mantissa that choose the step
    flags: Context
    context: Context
    steps: Sequence[int]  # 2^bits, unsigned: modulo 2^(bits of a word)

    def moved(self, words: Words, base: int) -> int:
        step = self.steps[words.mantissa(base) >> (words.mantissa_bits - self.bits)]
        return words.apply(base, signed(step, words.bits))


@dataclass(frozen=True)
class LowRank:
    """A product of a tall and a wide matrix that is added to the base before the correction."""

    c0: int  # exponent field of the product's unit
    left_contexts: Sequence[Context]  # one a component
    right_contexts: Sequence[Context]
    right: Sequence[Sequence[int]]  # one a component, of one number a column of the frame
    # All numbers of a factor are multiples of 2^stride; empty: all strides are 0.
    left_strides: Sequence[int] = ()
    right_strides: Sequence[int] = ()
    is_rounded: bool = False  # the product, to the dtype's digits, before it is added

    def strides(self) -> list[tuple[int, int]]:
        """(left, right) of each component."""
        none = [0] * len(self.left_contexts)
        left, right = self.left_strides or none, self.right_strides or none
        return list(zip(left, right, strict=True))


@dataclass(frozen=True)
class Model:
    words: Words
    tables: tuple[Table, ...]
    classes: tuple[Context, ...]
    offset: int = 0
    rows: Context | None = None  # None: no row has a scale
    columns: Columns | None = None
    staircase: Staircase | None = None
    low_rank: LowRank | None = None
    stride: int = 0  # last digits that are zero in all words: version 2 where there are any

    @property
    def version(self) -> int:
        return STRIDED_VERSION if self.stride > 0 else FIRST_VERSION

    @property
    def coder(self) -> Coder:
        return Coder(ALPHABET, self.tables)

    @property
    def table_log(self) -> int:
        return self.tables[0].table_log

    def rounded(self, word: int) -> int:
        """A predicted word to a multiple of 2^stride: its digits but the sign, ties to even."""
        if self.stride == 0 or (self.staircase is None and self.low_rank is None):
            return word
        sign = word & self.words.sign if self.words.is_float else 0
        whole, rest = divmod(word ^ sign, 1 << self.stride)
        half = 1 << (self.stride - 1)
        whole += rest > half or (rest == half and whole % 2 == 1)
        return sign | (whole << self.stride) % self.words.sign

    def contexts(self) -> list[Context]:
        """All contexts, in the prelude's order."""
        contexts = list(self.classes)
        if self.rows is not None:
            contexts.append(self.rows)
        if self.columns is not None:
            contexts.append(self.columns.context)
        if self.staircase is not None:
            contexts += [self.staircase.flags, self.staircase.context]
        if self.low_rank is not None:
            contexts += [*self.low_rank.left_contexts, *self.low_rank.right_contexts]
        return contexts


def require_scales(scales: Sequence[int], of_what: str) -> None:
    require(
        all(-LARGEST_SCALE - 1 <= scale <= LARGEST_SCALE for scale in scales),
        f"a {of_what} scale beyond -8192 to 8191",
    )
