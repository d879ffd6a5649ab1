"""fm_delta, versions 1 and 2, in readable Python. The native kernels must give the same bytes.

Format: codecs/spec/fm_delta.md. The choice of a model and of a block's side values is not part of
the format, and not here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltahub.codecs.protocol import Buffer, Geometry
from deltahub.codecs.reference.bits import require
from deltahub.codecs.reference.coder import Context, StreamReader, ValueSequence, guarded, unguarded
from deltahub.codecs.reference.fm_delta_model import (
    SIDE_BITS,
    Columns,
    LowRank,
    Model,
    WeightDecaySteps,
    require_scales,
)
from deltahub.codecs.reference.fm_delta_prelude import parse_prelude, write_prelude
from deltahub.codecs.reference.prediction import predicted, product, rounded_product
from deltahub.codecs.reference.words import Words, signed

__all__ = [
    "BlockShape",
    "Columns",
    "LowRank",
    "Model",
    "SideValues",
    "WeightDecaySteps",
    "Words",
    "block_sequences",
    "decode_block",
    "encode_block",
    "parse_prelude",
    "read_side_values",
    "write_prelude",
]


@dataclass(frozen=True)
class BlockShape:
    """A block's rows and columns: whole rows, or a part of one row that begins at column `left`."""

    rows: int
    columns: int
    left: int = 0

    @classmethod
    def of(cls, geometry: Geometry, index: int) -> "BlockShape":
        first, count = geometry.block_elements(index)
        if geometry.parts_per_row > 1:
            return cls(1, count, first % geometry.columns)
        return cls(count // geometry.columns, geometry.columns)


@dataclass(frozen=True)
class SideValues:
    """The side values of a block's rows. Those that the model does not have are empty."""

    scales: Sequence[int] = ()  # one for each row
    flags: Sequence[int] = ()  # one for each row: 1 for a weight-decay row
    left: Sequence[Sequence[int]] = ()  # for each component one left factor for each row


def expectations(
    model: Model, base_words: Sequence[int], shape: BlockShape, sides: SideValues
) -> Iterator[tuple[int, Context]]:
    """(the predicted word, the context of its difference) for each element of a block."""
    for i in range(shape.rows):
        row_scale = sides.scales[i] if model.rows is not None else 0
        for j in range(shape.columns):
            base = base_words[i * shape.columns + j]
            if model.decay_steps is not None and sides.flags[i]:
                word = model.rounded(model.decay_steps.applied(model.words, base))
                z = row_scale
            else:
                word = base
                if model.low_rank is not None:
                    left = [component[i] for component in sides.left]
                    right = [row[shape.left + j] for row in model.low_rank.right]
                    step = product(left, right)
                    if model.low_rank.is_rounded:
                        step = rounded_product(model.words, step, model.zero_bits)
                    word = predicted(model.words, base, step, model.low_rank.c0)
                word = model.rounded(word)
                z = row_scale + model.offset
                if model.columns is not None:
                    z += model.columns.scales[shape.left + j]
                if model.words.is_float:
                    z -= 4 * max(model.words.exponent(word), 1)
            yield word, model.classes[min(max(z, 0), len(model.classes) - 1)]


def block_sequences(
    model: Model, source: Buffer, base: Buffer, shape: BlockShape, sides: SideValues
) -> list[ValueSequence]:
    """The sequences of a block's stream. source, base: shape.rows * shape.columns words."""
    sequences = []
    if model.rows is not None:
        sequences.append(ValueSequence(SIDE_BITS, [model.rows] * shape.rows, sides.scales))
    if model.decay_steps is not None:
        sequences.append(
            ValueSequence(SIDE_BITS, [model.decay_steps.flags] * shape.rows, sides.flags)
        )
    if model.low_rank is not None:
        low_rank = model.low_rank
        left_zero_bits = [left for left, _ in low_rank.component_zero_bits()]
        for context, zero_bits, left in zip(
            low_rank.left_contexts, left_zero_bits, sides.left, strict=True
        ):
            values = [value >> zero_bits for value in left]
            sequences.append(ValueSequence(SIDE_BITS, [context] * shape.rows, values))
    words = model.words
    expected = list(expectations(model, words.read(base), shape, sides))
    deltas = [
        words.delta(word, prediction) >> model.zero_bits
        for word, (prediction, _) in zip(words.read(source), expected, strict=True)
    ]
    sequences.append(ValueSequence(words.bits, [context for _, context in expected], deltas))
    return sequences


def encode_block(
    model: Model, source: Buffer, base: Buffer, shape: BlockShape, sides: SideValues | None = None
) -> bytes:
    """One coded block. It may be as long as the block or longer; then an encoder stores it raw."""
    sequences = block_sequences(model, source, base, shape, sides or SideValues())
    return guarded(model.coder.encode(sequences))


def read_side_values(model: Model, reader: StreamReader, shape: BlockShape) -> SideValues:
    """The side values, with which a block's stream begins."""
    scales: list[int] = []
    flags: list[int] = []
    left: list[list[int]] = []
    if model.rows is not None:
        scales = reader.take_sequence(SIDE_BITS, [model.rows] * shape.rows)
        require_scales(scales, "row")
    if model.decay_steps is not None:
        flags = reader.take_sequence(SIDE_BITS, [model.decay_steps.flags] * shape.rows)
        require(all(flag in (0, 1) for flag in flags), "a row flag is neither 0 nor 1")
    if model.low_rank is not None:
        left_zero_bits = [bits for bits, _ in model.low_rank.component_zero_bits()]
        for context, zero_bits in zip(model.low_rank.left_contexts, left_zero_bits, strict=True):
            values = reader.take_sequence(SIDE_BITS, [context] * shape.rows)
            left.append([signed(value << zero_bits, SIDE_BITS) for value in values])
    return SideValues(scales, flags, left)


def decode_block(model: Model, block: Buffer, base: Buffer, shape: BlockShape) -> bytes:
    """The decoded words of a coded block. CorruptFrame for a block that no encoder writes."""
    reader = model.coder.open(unguarded(block))
    sides = read_side_values(model, reader, shape)
    expected = list(expectations(model, model.words.read(base), shape, sides))
    deltas = reader.take_sequence(model.words.bits, [context for _, context in expected])
    reader.finish()
    return model.words.write(
        [
            model.words.apply(prediction, delta << model.zero_bits)
            >> model.zero_bits
            << model.zero_bits
            for (prediction, _), delta in zip(expected, deltas, strict=True)
        ]
    )
