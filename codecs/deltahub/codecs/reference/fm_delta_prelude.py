"""The prelude of fm_delta: a model has exactly one form as bytes."""

from dataclasses import replace
from itertools import accumulate, pairwise

from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference.bits import BitReader, Field, require, write_fields
from deltahub.codecs.reference.coder import (
    Coder,
    Context,
    ValueSequence,
    read_table,
    read_table_log,
    table_fields,
)
from deltahub.codecs.reference.fm_delta_model import (
    ALPHABET,
    FIRST_VERSION,
    SIDE_BITS,
    ZERO_BITS_VERSION,
    Columns,
    LowRank,
    Model,
    WeightDecaySteps,
    require_scales,
)
from deltahub.codecs.reference.prediction import GUARD_BITS
from deltahub.codecs.reference.words import Words, signed

MAX_STEP_BITS = 10  # mantissa bits that choose a step
MAX_RANK = 64
FACTOR_FIELD_BITS = 4  # of the field with a factor's trailing zero bits
WORDS_FIELD_BITS = 6  # of the field with the words' trailing zero bits


def write_prelude(model: Model) -> bytes:
    """The model's bytes. Does not check the model, because tests write faulty ones."""
    prelude = write_fields(model_fields(model))
    sequences = column_sequences(model)
    return prelude + model.coder.encode(sequences) if sequences else prelude


def model_fields(model: Model) -> list[Field]:
    fields: list[Field] = [(model.zero_bits, WORDS_FIELD_BITS)] if model.zero_bits > 0 else []
    fields += [(model.table_log, 4), (len(model.tables) - 1, 4)]
    for table in model.tables:
        fields += table_fields(table, ALPHABET.length_distance)
    fields.append((len(model.classes) - 1, 6))
    fields += _context(model.classes[0])
    for before, context in pairwise(model.classes):
        fields += [(1, 1)] if context == before else [(0, 1), *_context(context)]
    fields.append((model.offset, SIDE_BITS))
    fields += [(0, 1)] if model.rows is None else [(1, 1), *_context(model.rows)]
    fields += [(0, 1)] if model.columns is None else [(1, 1), *_context(model.columns.context)]
    decay_steps = model.decay_steps
    fields.append((0 if decay_steps is None else decay_steps.bits, 4))
    if decay_steps is not None:
        fields += [*_context(decay_steps.flags), *_context(decay_steps.context)]
    low_rank = model.low_rank
    fields.append((0 if low_rank is None else len(low_rank.right), 7))
    if low_rank is not None:
        fields += [(low_rank.c0, 8), (int(low_rank.is_rounded), 1)]
        contexts = zip(low_rank.left_contexts, low_rank.right_contexts, strict=True)
        for pair, pair_zero_bits in zip(contexts, low_rank.component_zero_bits(), strict=True):
            for context, zero_bits in zip(pair, pair_zero_bits, strict=True):
                fields += [*_context(context), (zero_bits, FACTOR_FIELD_BITS)]
    return fields


def column_sequences(model: Model) -> list[ValueSequence]:
    """The sequences of the column stream; empty if there is no such stream."""
    sequences = []
    if model.columns is not None:
        scales = model.columns.scales
        sequences.append(ValueSequence(SIDE_BITS, [model.columns.context] * len(scales), scales))
    if model.decay_steps is not None:
        bits, steps = model.words.bits, model.decay_steps.steps
        increments = [signed(step - before, bits) for before, step in pairwise([0, *steps])]
        sequences.append(ValueSequence(bits, [model.decay_steps.context] * len(steps), increments))
    if model.low_rank is not None:
        low_rank = model.low_rank
        right_zero_bits = [bits for _, bits in low_rank.component_zero_bits()]
        for context, zero_bits, right in zip(
            low_rank.right_contexts, right_zero_bits, low_rank.right, strict=True
        ):
            values = [value >> zero_bits for value in right]
            sequences.append(ValueSequence(SIDE_BITS, [context] * len(right), values))
    return sequences


def parse_prelude(
    words: Words, n_rows: int, n_columns: int, prelude: Buffer, version: int = FIRST_VERSION
) -> Model:
    """The model of a frame of n_rows x n_columns words. CorruptFrame if no encoder writes it."""
    reader = BitReader(prelude)
    zero_bits = 0
    if version == ZERO_BITS_VERSION:
        zero_bits = reader.take(WORDS_FIELD_BITS)
        most = words.mantissa_bits if words.is_float else words.bits - 1
        require(1 <= zero_bits <= most, f"{zero_bits} trailing zero bits; 1 to {most} are allowed")
    table_log = read_table_log(reader)
    n_tables = reader.take(4) + 1
    tables = tuple(read_table(reader, table_log, ALPHABET) for _ in range(n_tables))
    classes = _read_classes(reader, n_tables, words.bits - zero_bits)
    offset = signed(reader.take(SIDE_BITS), SIDE_BITS)
    require(-8192 <= offset <= 8191, f"an offset of {offset}")

    def read_side() -> Context:
        return _read_context(reader, n_tables, SIDE_BITS)

    rows = read_side() if reader.take(1) else None
    columns = Columns(read_side(), ()) if reader.take(1) else None
    decay_steps = None
    step_bits = reader.take(4)
    if step_bits > 0:
        most = min(MAX_STEP_BITS, words.mantissa_bits)
        require(step_bits <= most, f"steps by {step_bits} mantissa bits; at most {most}")
        flags, context = read_side(), _read_context(reader, n_tables, words.bits)
        decay_steps = WeightDecaySteps(step_bits, flags, context, ())
    low_rank = None
    rank = reader.take(7)
    if rank > 0:
        # With more components than rows or columns a product would take more memory than the
        # frame itself.
        most = min(MAX_RANK, n_rows, n_columns) if words in GUARD_BITS else 0
        require(rank <= most, f"a product of rank {rank}")
        c0 = reader.take(8)
        require(1 <= c0 < words.max_exponent, f"a product whose unit has exponent field {c0}")
        is_rounded = reader.take(1) == 1
        factors = [(read_side(), reader.take(FACTOR_FIELD_BITS)) for _ in range(2 * rank)]
        lefts, left_zero_bits = zip(*factors[::2], strict=True)
        rights, right_zero_bits = zip(*factors[1::2], strict=True)
        if not any((*left_zero_bits, *right_zero_bits)):
            left_zero_bits = right_zero_bits = ()
        low_rank = LowRank(c0, lefts, rights, (), left_zero_bits, right_zero_bits, is_rounded)

    model = Model(words, tables, classes, offset, rows, columns, decay_steps, low_rank, zero_bits)
    used = {context.table for context in model.contexts()}
    require(len(used) == n_tables, "a table that no context uses")
    return _with_column_stream(model, n_columns, reader.take_rest())


def _with_column_stream(model: Model, n_columns: int, stream: bytes) -> Model:
    columns, decay_steps, low_rank = model.columns, model.decay_steps, model.low_rank
    if columns is None and decay_steps is None and low_rank is None:
        require(stream == b"", "the prelude goes on")
        return model
    reader = Coder(ALPHABET, model.tables).open(stream)
    if columns is not None:
        scales = tuple(reader.take_sequence(SIDE_BITS, [columns.context] * n_columns))
        require_scales(scales, "column")
        columns = replace(columns, scales=scales)
    if decay_steps is not None:
        bits = model.words.bits
        increments = reader.take_sequence(bits, [decay_steps.context] * (1 << decay_steps.bits))
        steps = tuple(step % (1 << bits) for step in accumulate(increments))
        decay_steps = replace(decay_steps, steps=steps)
    if low_rank is not None:
        right = tuple(
            tuple(
                signed(value << zero_bits, SIDE_BITS)
                for value in reader.take_sequence(SIDE_BITS, [context] * n_columns)
            )
            for context, (_, zero_bits) in zip(
                low_rank.right_contexts, low_rank.component_zero_bits(), strict=True
            )
        )
        low_rank = replace(low_rank, right=right)
    reader.finish()
    return replace(model, columns=columns, decay_steps=decay_steps, low_rank=low_rank)


def _context(context: Context) -> list[Field]:
    return [(context.table, 4), (context.shift, 6)]


def _read_context(reader: BitReader, n_tables: int, bits: int) -> Context:
    table, shift = reader.take(4), reader.take(6)
    require(table < n_tables, f"a context with table {table} of {n_tables}")
    require(shift < bits, f"a shift of {shift} bits in values of {bits}")
    return Context(table, shift)


def _read_classes(reader: BitReader, n_tables: int, bits: int) -> tuple[Context, ...]:
    n_classes = reader.take(6) + 1
    classes = [_read_context(reader, n_tables, bits)]
    while len(classes) < n_classes:
        if reader.take(1):
            classes.append(classes[-1])
            continue
        classes.append(_read_context(reader, n_tables, bits))
        require(classes[-1] != classes[-2], "a class like the one before has its own context")
    return tuple(classes)
