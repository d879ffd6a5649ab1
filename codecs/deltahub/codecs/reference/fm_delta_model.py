"""The model in an fm_delta prelude: tables, classes, and predictions shared by all blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltahub.codecs.reference.bits import require
from deltahub.codecs.reference.coder import ESCAPES, Alphabet, Coder, Context, Table
from deltahub.codecs.reference.words import Words, signed

SIDE_BITS = 16  # of a side value and of the offset
LARGEST_SCALE = 8191
FIRST_VERSION, ZERO_BITS_VERSION = 1, 2
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


# Values near zero have a symbol each. Others have two symbols for each octave and sign.
ALPHABET = Alphabet((*ESCAPES, *_cells()), length_distance=2)


@dataclass(frozen=True)
class Columns:
    """One scale for each column of the frame: the expected size of its differences."""

    context: Context
    scales: Sequence[int]


@dataclass(frozen=True)
class WeightDecaySteps:
    """The steps of weight-decay rows. A step depends only on the mantissa of the base word."""

    bits: int  # number of highest mantissa bits that choose the step
    flags: Context
    context: Context
    steps: Sequence[int]  # 2^bits steps, modulo 2^(bits of a word)

    def applied(self, words: Words, base: int) -> int:
        step = self.steps[words.mantissa(base) >> (words.mantissa_bits - self.bits)]
        return words.apply(base, signed(step, words.bits))


@dataclass(frozen=True)
class LowRank:
    """The product of a tall and a wide matrix, which is added to the base."""

    c0: int  # exponent field of the product's unit
    left_contexts: Sequence[Context]  # one for each component
    right_contexts: Sequence[Context]
    right: Sequence[Sequence[int]]  # for each component one right factor for each column
    # Trailing zero bits that all values of a component's factor share; empty: all are 0.
    left_zero_bits: Sequence[int] = ()
    right_zero_bits: Sequence[int] = ()
    is_rounded: bool = False  # the product is rounded to the dtype's precision before it is added

    def component_zero_bits(self) -> list[tuple[int, int]]:
        """The trailing zero bits of each component's (left, right) factors."""
        none = [0] * len(self.left_contexts)
        left, right = self.left_zero_bits or none, self.right_zero_bits or none
        return list(zip(left, right, strict=True))


@dataclass(frozen=True)
class Model:
    words: Words
    tables: tuple[Table, ...]
    classes: tuple[Context, ...]
    offset: int = 0
    rows: Context | None = None  # None: no row has a scale
    columns: Columns | None = None
    decay_steps: WeightDecaySteps | None = None
    low_rank: LowRank | None = None
    zero_bits: int = 0  # trailing zero bits that all words share; version 2 if there are any

    @property
    def version(self) -> int:
        return ZERO_BITS_VERSION if self.zero_bits > 0 else FIRST_VERSION

    @property
    def coder(self) -> Coder:
        return Coder(ALPHABET, self.tables)

    @property
    def table_log(self) -> int:
        return self.tables[0].table_log

    def rounded(self, word: int) -> int:
        """A predicted word, rounded to a multiple of 2^zero_bits without its sign; ties to even."""
        if self.zero_bits == 0 or (self.decay_steps is None and self.low_rank is None):
            return word
        sign = word & self.words.sign if self.words.is_float else 0
        whole, rest = divmod(word ^ sign, 1 << self.zero_bits)
        half = 1 << (self.zero_bits - 1)
        whole += rest > half or (rest == half and whole % 2 == 1)
        return sign | (whole << self.zero_bits) % self.words.sign

    def contexts(self) -> list[Context]:
        """All contexts, in the order of the prelude."""
        contexts = list(self.classes)
        if self.rows is not None:
            contexts.append(self.rows)
        if self.columns is not None:
            contexts.append(self.columns.context)
        if self.decay_steps is not None:
            contexts += [self.decay_steps.flags, self.decay_steps.context]
        if self.low_rank is not None:
            contexts += [*self.low_rank.left_contexts, *self.low_rank.right_contexts]
        return contexts


def require_scales(scales: Sequence[int], of_what: str) -> None:
    require(
        all(-LARGEST_SCALE - 1 <= scale <= LARGEST_SCALE for scale in scales),
        f"a {of_what} scale outside of -8192 to 8191",
    )
