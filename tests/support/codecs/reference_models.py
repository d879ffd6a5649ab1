"""Models for the reference codecs, with tables made from the symbols to code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltahub.codecs import DType, Geometry
from deltahub.codecs.reference.coder import (
    ESCAPE,
    NEGATIVE_ESCAPE,
    Alphabet,
    Context,
    Table,
    ValueSequence,
)
from deltahub.codecs.reference.fm_delta import (
    BlockShape,
    Columns,
    LowRank,
    Model,
    SideValues,
    WeightDecaySteps,
    Words,
    block_sequences,
)
from deltahub.codecs.reference.fm_delta_model import ALPHABET, SIDE_BITS
from deltahub.codecs.reference.fm_delta_prelude import column_sequences
from support.codecs.deltas import fine_tune, special_words, with_stride


def table_for(counts: Counter[int], n_symbols: int, table_log: int) -> Table:
    """A table with both escapes and the most frequent of the counted symbols."""
    counts = Counter({symbol: count for symbol, count in counts.items() if symbol > 1})
    counts = Counter(dict(counts.most_common((1 << table_log) - 2)))
    total = counts.total() + 2
    frequencies = [0] * n_symbols
    for symbol in (ESCAPE, NEGATIVE_ESCAPE, *counts):
        frequencies[symbol] = max((counts[symbol] << table_log) // total, 1)
    while (left := (1 << table_log) - sum(frequencies)) != 0:
        frequencies[int(np.argmax(frequencies))] += 1 if left > 0 else -1
    return Table(table_log, tuple(frequencies))


def tables_for(
    alphabet: Alphabet, sequences: Sequence[ValueSequence], n_tables: int, table_log: int
) -> tuple[Table, ...]:
    """Tables 0 to n_tables - 1 for the contexts of the sequences."""
    counts: list[Counter[int]] = [Counter() for _ in range(n_tables)]
    used = (1,) * len(alphabet.symbols)
    for sequence in sequences:
        for number, context in zip(sequence.values, sequence.contexts, strict=True):
            symbol = alphabet.symbol(number, used, context.shift, sequence.bits)
            counts[context.table][symbol] += 1
    return tuple(table_for(counter, len(used), table_log) for counter in counts)


@dataclass(frozen=True)
class Tensor:
    """A tensor, a model that codes it, and the side values of each block."""

    geometry: Geometry
    source: bytes
    base: bytes
    sides: tuple[SideValues, ...]  # one for each block
    model: Model

    @property
    def shapes(self) -> list[BlockShape]:
        return [BlockShape.of(self.geometry, i) for i in range(self.geometry.n_blocks)]

    def block(self, index: int) -> tuple[bytes, bytes]:
        """(source, base) of one block."""
        begin, end = self.geometry.block_bytes(index)
        return self.source[begin:end], self.base[begin:end]


def special_pair(dtype: DType, count: int, seed: int) -> tuple[bytes, bytes]:
    """(source, base): zeros, extremes, infinities, NaNs and random words."""
    random = np.random.default_rng(seed)
    words = special_words(dtype)
    anything = random.integers(0, 256, (2, count * dtype.itemsize), dtype=np.uint8)
    pair = anything.view(words.dtype)
    chosen = random.choice(words, (2, count))
    mixed = np.where(random.random((2, count)) < 0.7, chosen, pair)
    return mixed[0].tobytes(), mixed[1].tobytes()


def make_tensor(
    geometry: Geometry,
    *,
    seed: int = 0,
    special: bool = False,
    table_log: int = 8,
    n_classes: int = 5,
    rows: bool = False,
    columns: bool = False,
    staircase_bits: int = 0,
    rank: int = 0,
    stride: int = 0,
) -> Tensor:
    """Words, side values and a model that codes them. The side values reach their limits."""
    random = np.random.default_rng(seed)
    dtype, words = geometry.dtype, Words.of(geometry.dtype)
    source, base = (special_pair if special else fine_tune)(dtype, geometry.count, seed)
    pair = with_stride(source, dtype, stride), with_stride(base, dtype, stride)

    def numbers(low: int, high: int, count: int) -> tuple[int, ...]:
        """Values, most of them near zero, some at the limits."""
        values = random.integers(-20, 20, count)
        limits = random.choice([low, high], count)
        chosen = np.where(random.random(count) < 0.1, limits, values)
        return tuple(int(value) for value in np.clip(chosen, low, high))

    # Neighbouring classes with equal and other contexts; side values have the last table.
    classes = tuple(Context(z // 2 % 2, z // 2 % (words.bits - stride)) for z in range(n_classes))
    side = max(context.table for context in classes) + 1

    def side_context(bits: int = SIDE_BITS) -> Context:
        return Context(side, int(random.integers(0, bits)))

    offset = 500 if dtype is DType.BF16 else 60
    model = Model(words, (Table(table_log, ()),) * side, classes, offset, zero_bits=stride)
    if rows:
        model = replace(model, rows=side_context())
    if columns:
        scales = numbers(-8192, 8191, geometry.columns)
        model = replace(model, columns=Columns(side_context(), scales))
    if staircase_bits:
        steps = tuple(step % (1 << words.bits) for step in numbers(-90, 90, 1 << staircase_bits))
        decay_steps = WeightDecaySteps(
            staircase_bits, side_context(), side_context(words.bits), steps
        )
        model = replace(model, decay_steps=decay_steps)
    if rank:
        right = tuple(numbers(-32768, 32767, geometry.columns) for _ in range(rank))
        lefts = tuple(side_context() for _ in range(rank))
        rights = tuple(side_context() for _ in range(rank))
        c0 = int(random.integers(1, words.max_exponent))
        model = replace(model, low_rank=LowRank(c0, lefts, rights, right))
    if len(model.contexts()) > n_classes:
        model = replace(model, tables=(*model.tables, Table(table_log, ())))

    sides = []
    for index in range(geometry.n_blocks):
        h = BlockShape.of(geometry, index).rows
        sides.append(
            SideValues(
                numbers(-8192, 8191, h) if rows else (),
                tuple(int(flag) for flag in random.integers(0, 2, h)) if staircase_bits else (),
                tuple(numbers(-32768, 32767, h) for _ in range(rank)),
            )
        )
    tensor = Tensor(geometry, *pair, tuple(sides), model)
    sequences = column_sequences(model)
    for index, shape in enumerate(tensor.shapes):
        sequences += block_sequences(model, *tensor.block(index), shape, sides[index])
    tables = tables_for(ALPHABET, sequences, len(model.tables), table_log)
    return replace(tensor, model=replace(model, tables=tables))
