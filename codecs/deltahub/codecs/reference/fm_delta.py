"""fm_delta, versions 1 and 2, in readable Python: what the native kernels must do, byte for byte.

Format: codecs/spec/fm_delta.md. How an encoder chooses a model and a block's side numbers is no
part of the format, and not here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltahub.codecs.protocol import Buffer, Geometry
from deltahub.codecs.reference.bits import require
from deltahub.codecs.reference.coder import Context, Numbers, StreamReader, guarded, unguarded
from deltahub.codecs.reference.fm_delta_model import (
    SIDE_BITS,
    Columns,
    LowRank,
    Model,
    Staircase,
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
    "Sides",
    "Staircase",
    "Words",
    "block_sequences",
    "decode_block",
    "encode_block",
    "parse_prelude",
    "read_sides",
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
class Sides:
    """What a block's stream says of its rows, where the model asks for it: else empty."""

    scales: Sequence[int] = ()  # one a row
    flags: Sequence[int] = ()  # one a row: 1 where the staircase predicts it
    left: Sequence[Sequence[int]] = ()  # one a component, of one number a row


def expectations(
    model: Model, base_words: Sequence[int], shape: BlockShape, sides: Sides
) -> Iterator[tuple[int, Context]]:
    """(the predicted word, the context of its correction) for each element of a block."""
    for i in range(shape.rows):
        row_scale = sides.scales[i] if model.rows is not None else 0
        for j in range(shape.columns):
            base = base_words[i * shape.columns + j]
            if model.staircase is not None and sides.flags[i]:
                word = model.rounded(model.staircase.moved(model.words, base))
                z = row_scale
            else:
                word = base
                if model.low_rank is not None:
                    left = [component[i] for component in sides.left]
                    right = [row[shape.left + j] for row in model.low_rank.right]
                    step = product(left, right)
                    if model.low_rank.is_rounded:
                        step = rounded_product(model.words, step, model.stride)
                    word = predicted(model.words, base, step, model.low_rank.c0)
                word = model.rounded(word)
                z = row_scale + model.offset
                if model.columns is not None:
                    z += model.columns.scales[shape.left + j]
                if model.words.is_float:
                    z -= 4 * max(model.words.exponent(word), 1)
            yield word, model.classes[min(max(z, 0), len(model.classes) - 1)]


def block_sequences(
    model: Model, source: Buffer, base: Buffer, shape: BlockShape, sides: Sides
) -> list[Numbers]:
    """The sequences of a block's stream. source, base: shape.rows * shape.columns words."""
    sequences = []
    if model.rows is not None:
        sequences.append(Numbers(SIDE_BITS, [model.rows] * shape.rows, sides.scales))
    if model.staircase is not None:
        sequences.append(Numbers(SIDE_BITS, [model.staircase.flags] * shape.rows, sides.flags))
    if model.low_rank is not None:
        low_rank = model.low_rank
        strides = [left for left, _ in low_rank.strides()]
        for context, stride, left in zip(low_rank.left_contexts, strides, sides.left, strict=True):
            numbers = [number >> stride for number in left]
            sequences.append(Numbers(SIDE_BITS, [context] * shape.rows, numbers))
    words = model.words
    expected = list(expectations(model, words.read(base), shape, sides))
    deltas = [
        words.delta(word, prediction) >> model.stride
        for word, (prediction, _) in zip(words.read(source), expected, strict=True)
    ]
    sequences.append(Numbers(words.bits, [context for _, context in expected], deltas))
    return sequences


def encode_block(
    model: Model, source: Buffer, base: Buffer, shape: BlockShape, sides: Sides | None = None
) -> bytes:
    """One coded block. It may be as long as the block or longer; then the block is kept raw."""
    sequences = block_sequences(model, source, base, shape, sides or Sides())
    return guarded(model.coder.encode(sequences))


def read_sides(model: Model, reader: StreamReader, shape: BlockShape) -> Sides:
    """The side numbers, with which a block's stream begins."""
    scales: list[int] = []
    flags: list[int] = []
    left: list[list[int]] = []
    if model.rows is not None:
        scales = reader.take_sequence(SIDE_BITS, [model.rows] * shape.rows)
        require_scales(scales, "row")
    if model.staircase is not None:
        flags = reader.take_sequence(SIDE_BITS, [model.staircase.flags] * shape.rows)
        require(all(flag in (0, 1) for flag in flags), "a row flag is neither 0 nor 1")
    if model.low_rank is not None:
        strides = [stride for stride, _ in model.low_rank.strides()]
        for context, stride in zip(model.low_rank.left_contexts, strides, strict=True):
            numbers = reader.take_sequence(SIDE_BITS, [context] * shape.rows)
            left.append([signed(number << stride, SIDE_BITS) for number in numbers])
    return Sides(scales, flags, left)


def decode_block(model: Model, block: Buffer, base: Buffer, shape: BlockShape) -> bytes:
    """The words of a coded block; CorruptFrame where no encoder writes such a block."""
    reader = model.coder.open(unguarded(block))
    sides = read_sides(model, reader, shape)
    expected = list(expectations(model, model.words.read(base), shape, sides))
    deltas = reader.take_sequence(model.words.bits, [context for _, context in expected])
    reader.finish()
    return model.words.write(
        [
            model.words.apply(prediction, delta << model.stride) >> model.stride << model.stride
            for (prediction, _), delta in zip(expected, deltas, strict=True)
        ]
    )
