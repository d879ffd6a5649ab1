"""The prelude of fm_delta: a model as bytes, in its one form."""

from dataclasses import replace
from itertools import accumulate, pairwise

from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference.bits import BitReader, Field, require, write_fields
from deltahub.codecs.reference.coder import (
    Coder,
    Context,
    Numbers,
    read_table,
    read_table_log,
    table_fields,
)
from deltahub.codecs.reference.fm_delta_model import (
    ALPHABET,
    FIRST_VERSION,
    SIDE_BITS,
    STRIDED_VERSION,
    Columns,
    LowRank,
    Model,
    Staircase,
    require_scales,
)
from deltahub.codecs.reference.prediction import GUARD_BITS
from deltahub.codecs.reference.words import Words, signed

MAX_STAIRCASE_BITS = 10
MAX_RANK = 64
STRIDE_BITS = 4  # of a factor
DIGITS_BITS = 6  # of the stride of words


def write_prelude(model: Model) -> bytes:
    """The model's bytes. Checks nothing: tests write faulty models with it."""
    prelude = write_fields(model_fields(model))
    sequences = column_sequences(model)
    return prelude + model.coder.encode(sequences) if sequences else prelude


def model_fields(model: Model) -> list[Field]:
    fields: list[Field] = [(model.stride, DIGITS_BITS)] if model.stride > 0 else []
    fields += [(model.table_log, 4), (len(model.tables) - 1, 4)]
    for table in model.tables:
        fields += table_fields(table, ALPHABET.stride)
    fields.append((len(model.classes) - 1, 6))
    fields += _context(model.classes[0])
    for before, context in pairwise(model.classes):
        fields += [(1, 1)] if context == before else [(0, 1), *_context(context)]
    fields.append((model.offset, SIDE_BITS))
    fields += [(0, 1)] if model.rows is None else [(1, 1), *_context(model.rows)]
    fields += [(0, 1)] if model.columns is None else [(1, 1), *_context(model.columns.context)]
    staircase = model.staircase
    fields.append((0 if staircase is None else staircase.bits, 4))
    if staircase is not None:
        fields += [*_context(staircase.flags), *_context(staircase.context)]
    low_rank = model.low_rank
    fields.append((0 if low_rank is None else len(low_rank.right), 7))
    if low_rank is not None:
        fields += [(low_rank.c0, 8), (int(low_rank.is_rounded), 1)]
        contexts = zip(low_rank.left_contexts, low_rank.right_contexts, strict=True)
        for pair, strides in zip(contexts, low_rank.strides(), strict=True):
            for context, stride in zip(pair, strides, strict=True):
                fields += [*_context(context), (stride, STRIDE_BITS)]
    return fields


def column_sequences(model: Model) -> list[Numbers]:
    """The sequences of the column stream; none where there is no such stream."""
    sequences = []
    if model.columns is not None:
        scales = model.columns.scales
        sequences.append(Numbers(SIDE_BITS, [model.columns.context] * len(scales), scales))
    if model.staircase is not None:
        bits, steps = model.words.bits, model.staircase.steps
        rises = [signed(step - before, bits) for before, step in pairwise([0, *steps])]
        sequences.append(Numbers(bits, [model.staircase.context] * len(steps), rises))
    if model.low_rank is not None:
        low_rank = model.low_rank
        strides = [right for _, right in low_rank.strides()]
        for context, stride, right in zip(
            low_rank.right_contexts, strides, low_rank.right, strict=True
        ):
            numbers = [number >> stride for number in right]
            sequences.append(Numbers(SIDE_BITS, [context] * len(right), numbers))
    return sequences


def parse_prelude(
    words: Words, n_rows: int, n_columns: int, prelude: Buffer, version: int = FIRST_VERSION
) -> Model:
    """The model of a frame of n_rows x n_columns words; CorruptFrame where no encoder writes it."""
    reader = BitReader(prelude)
    stride = 0
    if version == STRIDED_VERSION:
        stride = reader.take(DIGITS_BITS)
        most = words.mantissa_bits if words.is_float else words.bits - 1
        require(1 <= stride <= most, f"a stride of {stride} digits")
    table_log = read_table_log(reader)
    n_tables = reader.take(4) + 1
    tables = tuple(read_table(reader, table_log, ALPHABET) for _ in range(n_tables))
    classes = _read_classes(reader, n_tables, words.bits - stride)
    offset = signed(reader.take(SIDE_BITS), SIDE_BITS)
    require(-8192 <= offset <= 8191, f"an offset of {offset}")

    def read_side() -> Context:
        return _read_context(reader, n_tables, SIDE_BITS)

    rows = read_side() if reader.take(1) else None
    columns = Columns(read_side(), ()) if reader.take(1) else None
    staircase = None
    staircase_bits = reader.take(4)
    if staircase_bits > 0:
        most = min(MAX_STAIRCASE_BITS, words.mantissa_bits)
        require(staircase_bits <= most, f"a staircase over {staircase_bits} bits of a mantissa")
        flags, context = read_side(), _read_context(reader, n_tables, words.bits)
        staircase = Staircase(staircase_bits, flags, context, ())
    low_rank = None
    rank = reader.take(7)
    if rank > 0:
        # A product with more components than its rows or columns would ask for more memory than
        # the frame itself.
        most = min(MAX_RANK, n_rows, n_columns) if words in GUARD_BITS else 0
        require(rank <= most, f"a product of rank {rank}")
        c0 = reader.take(8)
        require(1 <= c0 < words.max_exponent, f"a product whose unit has exponent field {c0}")
        is_rounded = reader.take(1) == 1
        factors = [(read_side(), reader.take(STRIDE_BITS)) for _ in range(2 * rank)]
        lefts, left_strides = zip(*factors[::2], strict=True)
        rights, right_strides = zip(*factors[1::2], strict=True)
        if not any((*left_strides, *right_strides)):
            left_strides = right_strides = ()
        low_rank = LowRank(c0, lefts, rights, (), left_strides, right_strides, is_rounded)

    model = Model(words, tables, classes, offset, rows, columns, staircase, low_rank, stride)
    used = {context.table for context in model.contexts()}
    require(len(used) == n_tables, "a table that no context uses")
    return _with_column_stream(model, n_columns, reader.take_rest())


def _with_column_stream(model: Model, n_columns: int, stream: bytes) -> Model:
    columns, staircase, low_rank = model.columns, model.staircase, model.low_rank
    if columns is None and staircase is None and low_rank is None:
        require(stream == b"", "the prelude goes on")
        return model
    reader = Coder(ALPHABET, model.tables).open(stream)
    if columns is not None:
        scales = tuple(reader.take_sequence(SIDE_BITS, [columns.context] * n_columns))
        require_scales(scales, "column")
        columns = replace(columns, scales=scales)
    if staircase is not None:
        bits = model.words.bits
        rises = reader.take_sequence(bits, [staircase.context] * (1 << staircase.bits))
        steps = tuple(step % (1 << bits) for step in accumulate(rises))
        staircase = replace(staircase, steps=steps)
    if low_rank is not None:
        right = tuple(
            tuple(
                signed(number << stride, SIDE_BITS)
                for number in reader.take_sequence(SIDE_BITS, [context] * n_columns)
            )
            for context, (_, stride) in zip(
                low_rank.right_contexts, low_rank.strides(), strict=True
            )
        )
        low_rank = replace(low_rank, right=right)
    reader.finish()
    return replace(model, columns=columns, staircase=staircase, low_rank=low_rank)


def _context(context: Context) -> list[Field]:
    return [(context.table, 4), (context.shift, 6)]


def _read_context(reader: BitReader, n_tables: int, bits: int) -> Context:
    table, shift = reader.take(4), reader.take(6)
    require(table < n_tables, f"a context with table {table} of {n_tables}")
    require(shift < bits, f"a shift of {shift} bits in numbers of {bits}")
    return Context(table, shift)


def _read_classes(reader: BitReader, n_tables: int, bits: int) -> tuple[Context, ...]:
    n_classes = reader.take(6) + 1
    classes = [_read_context(reader, n_tables, bits)]
    while len(classes) < n_classes:
        if reader.take(1):
            classes.append(classes[-1])
            continue
        classes.append(_read_context(reader, n_tables, bits))
        require(classes[-1] != classes[-2], "a class like the one before, told anew")
    return tuple(classes)
