"""The readable reference of fm_delta: encoded words come back, and faults are refused."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.codecs import CorruptFrame, DType, Geometry
from deltahub.codecs.reference.bits import Field, write_fields
from deltahub.codecs.reference.coder import Context, Table, guarded, table_fields, unguarded
from deltahub.codecs.reference.fm_delta import (
    BlockShape,
    Columns,
    LowRank,
    Model,
    SideValues,
    WeightDecaySteps,
    Words,
    decode_block,
    encode_block,
    expectations,
    parse_prelude,
    read_side_values,
    write_prelude,
)
from deltahub.codecs.reference.fm_delta_prelude import column_sequences
from deltahub.codecs.reference.prediction import GUARD_BITS
from support.codecs.reference_models import Tensor, make_tensor, table_for

every_dtype = pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)


def assert_comes_back(tensor: Tensor) -> None:
    prelude = write_prelude(tensor.model)
    geometry = tensor.geometry
    model = parse_prelude(tensor.model.words, geometry.rows, geometry.columns, prelude)
    assert model == tensor.model
    for index, (shape, sides) in enumerate(zip(tensor.shapes, tensor.sides, strict=True)):
        source, base = tensor.block(index)
        stream = encode_block(model, source, base, shape, sides)
        assert decode_block(model, stream, base, shape) == source


def all_parts(dtype: DType) -> dict[str, Any]:
    """All parts that a model for words of the dtype may have."""
    words = Words.of(dtype)
    return {
        "rows": True,
        "columns": True,
        "staircase_bits": min(words.mantissa_bits, 4),
        "rank": 3 if words in GUARD_BITS else 0,
    }


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DType)))
    words = Words.of(dtype)
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    if draw(st.booleans()):
        geometry = Geometry(dtype, rows, columns, draw(st.integers(1, rows)), 1)
    else:
        width = draw(st.integers(1, columns))
        geometry = Geometry(dtype, rows, columns, 1, -(-columns // width))
    return make_tensor(
        geometry,
        seed=draw(st.integers(0, 999)),
        special=draw(st.booleans()),
        table_log=draw(st.integers(7, 10)),
        n_classes=draw(st.sampled_from([1, 2, 3, 7, 64])),
        rows=draw(st.booleans()),
        columns=draw(st.booleans()),
        staircase_bits=draw(st.integers(0, min(10, words.mantissa_bits))),
        rank=draw(st.integers(0, min(4, rows, columns))) if words in GUARD_BITS else 0,
    )


@settings(max_examples=60)
@given(tensor=tensors())
def test_what_a_made_model_codes_comes_back(tensor: Tensor) -> None:
    assert_comes_back(tensor)


@every_dtype
@pytest.mark.parametrize("special", [False, True])
def test_every_dtype_comes_back_with_all_parts_of_a_model(dtype: DType, special: bool) -> None:
    for geometry in (Geometry(dtype, 7, 11, 3, 1), Geometry(dtype, 3, 70, 1, 3)):
        assert_comes_back(make_tensor(geometry, special=special, **all_parts(dtype)))


def test_sixty_four_components_come_back_and_no_more_than_rows_or_columns() -> None:
    tensor = make_tensor(Geometry(DType.BF16, 64, 64, 30, 1), rank=64)
    assert_comes_back(tensor)
    words, prelude = tensor.model.words, write_prelude(tensor.model)
    for shape in ((63, 64), (64, 63), (1, 1 << 25)):
        with pytest.raises(CorruptFrame, match="product of rank 64"):
            parse_prelude(words, *shape, prelude)


def test_a_word_is_coded_in_the_class_of_its_expected_correction() -> None:
    """Row and column scales add, and 4 for each exponent; a flagged row has only its own scale."""
    words = Words.of(DType.BF16)
    z_of = {Context(0, shift): shift for shift in range(16)}
    model = Model(
        words,
        (table_for(Counter(), 82, 7),),
        tuple(z_of),
        offset=4 * 127 + 5,
        rows=Context(0, 0),
        columns=Columns(Context(0, 0), (0, 0, 2, -3)),
        decay_steps=WeightDecaySteps(2, Context(0, 0), Context(0, 0), (1, 2, 3, 0xFFFF)),
    )
    base = [0x3F80, 0x4000, 0x3F80, 0x3F7F, 0x3F80, 0xBFA0, 0x3FC0, 0x3FE0]
    sides = SideValues(scales=(1, 7), flags=(0, 1))
    expected = list(expectations(model, base, BlockShape(2, 4), sides))
    assert [word for word, _ in expected] == [*base[:4], 0x3F81, 0xBFA2, 0x3FC3, 0x3FDF]
    assert [z_of[context] for _, context in expected] == [6, 2, 8, 7] + [7] * 4
    # The second half of the row: the scales of its columns.
    part = BlockShape(1, 2, left=2)
    expected = list(expectations(model, base[2:4], part, SideValues((9,), (0,))))
    assert [z_of[context] for _, context in expected] == [15, 15]


def test_a_step_of_rank_one_leaves_nothing_to_correct() -> None:
    """Words that a product predicts exactly take no bits, only their side values do."""
    base = (0x3F80).to_bytes(2, "little") * 12  # 1.0
    source = b"".join(
        (0x3F80 + 3 * i + j).to_bytes(2, "little") for i in (1, 2, 3) for j in (0, 3, 6, 9)
    )
    one = 1 << 14  # one last place of a number with exponent field c0
    model = Model(
        Words.of(DType.BF16),
        (table_for(Counter({2: 1}), 82, 7), table_for(Counter({2: 1}), 82, 7)),
        (Context(0, 0),),
        low_rank=LowRank(
            127,
            (Context(1, 14), Context(1, 14)),
            (Context(1, 14), Context(1, 14)),
            ((one, one, one, one), (0, 3 * one // 2, 3 * one // 2, 3 * one // 2)),
        ),
    )
    sides = SideValues(left=((3, 6, 9), (0, 0, 0)))
    expected = expectations(model, model.words.read(base), BlockShape(3, 4), sides)
    assert [word for word, _ in expected] == [0x3F83] * 4 + [0x3F86] * 4 + [0x3F89] * 4
    stream = encode_block(model, source, base, BlockShape(3, 4), sides)
    assert decode_block(model, stream, base, BlockShape(3, 4)) == source


SMALL = {
    "BF16, all parts": make_tensor(
        Geometry(DType.BF16, 3, 5, 3, 1), table_log=7, n_classes=2, **all_parts(DType.BF16)
    ),
    "F64, all parts": make_tensor(
        Geometry(DType.F64, 3, 4, 3, 1), table_log=7, n_classes=2, **all_parts(DType.F64)
    ),
    "U8, tables alone": make_tensor(Geometry(DType.U8, 2, 20, 2, 1), table_log=7),
}
every_small = pytest.mark.parametrize("tensor", SMALL.values(), ids=SMALL.keys())


def flipped(data: bytes) -> list[bytes]:
    number = int.from_bytes(data, "little")
    return [(number ^ 1 << bit).to_bytes(len(data), "little") for bit in range(8 * len(data))]


def cut(data: bytes) -> list[bytes]:
    return [data[:length] for length in range(len(data))]


@every_small
def test_a_damaged_block_is_refused(tensor: Tensor) -> None:
    (shape,), (sides,) = tensor.shapes, tensor.sides
    block = encode_block(tensor.model, tensor.source, tensor.base, shape, sides)
    for data in cut(block) + flipped(block) + [block + tail for tail in (b"\0", b"\1", block)]:
        with pytest.raises(CorruptFrame, match="the guard does not match"):
            decode_block(tensor.model, data, tensor.base, shape)


@every_small
def test_a_stream_of_other_digits_is_refused_or_is_another(tensor: Tensor) -> None:
    """With a valid guard, as an attacker would send it."""
    (shape,), (sides,) = tensor.shapes, tensor.sides
    stream = unguarded(encode_block(tensor.model, tensor.source, tensor.base, shape, sides))
    told = read_side_values(tensor.model, tensor.model.coder.open(stream), shape)
    changed = cut(stream) + flipped(stream) + [stream + tail for tail in (b"\0", b"\1", stream)]
    n_refused = 0
    for data in changed:
        try:
            decoded = decode_block(tensor.model, guarded(data), tensor.base, shape)
        except CorruptFrame:
            n_refused += 1
        else:
            if decoded == tensor.source:  # other side values may give the same classes
                reader = tensor.model.coder.open(data)
                assert read_side_values(tensor.model, reader, shape) != told
    assert n_refused > len(changed) // 4


@every_small
def test_a_damaged_prelude_is_refused_or_is_another(tensor: Tensor) -> None:
    """Damage to tables and fields is refused, or gives the only form of another model."""
    words = tensor.model.words
    n_rows, n_columns = tensor.geometry.rows, tensor.geometry.columns
    prelude = write_prelude(tensor.model)
    damaged = cut(prelude) + flipped(prelude) + [prelude + tail for tail in (b"\0", b"\1")]
    n_refused = 0
    for data in damaged:
        try:
            model = parse_prelude(words, n_rows, n_columns, data)
        except CorruptFrame:
            n_refused += 1
        else:
            assert model != tensor.model
            if not column_sequences(tensor.model):
                assert write_prelude(model) == data
    assert n_refused > len(damaged) // 4


@settings(max_examples=100)
@given(junk=st.binary(max_size=120), dtype=st.sampled_from(list(DType)))
def test_a_prelude_of_junk_is_refused_or_has_its_one_form(junk: bytes, dtype: DType) -> None:
    try:
        model = parse_prelude(Words.of(dtype), 3, 3, junk)
    except CorruptFrame:
        return
    assert write_prelude(model)[:8] == junk[:8]


TABLE = table_for(Counter({2: 6, 3: 2, 4: 1}), 82, 7)
CONTEXT: list[Field] = [(0, 4), (3, 6)]  # table 0, shift 3
NO_PARTS: list[Field] = [(0, 16), (0, 1), (0, 1), (0, 4), (0, 7)]


def prelude_of(
    *,
    table_log: int = 7,
    tables: tuple[Table, ...] = (TABLE,),
    classes: tuple[Field, ...] = ((0, 6), *CONTEXT),
    parts: tuple[Field, ...] = tuple(NO_PARTS),
) -> bytes:
    """A prelude of the given fields; the others are valid."""
    fields = [(table_log, 4), (len(tables) - 1, 4)]
    for table in tables:
        fields += table_fields(table, 2)
    return write_fields([*fields, *classes, *parts])


def test_the_prelude_without_faults_is_the_yardstick() -> None:
    words = Words.of(DType.BF16)
    model = parse_prelude(words, 3, 3, prelude_of())
    assert model == Model(words, (TABLE,), (Context(0, 3),))
    assert write_prelude(model) == prelude_of()


def parts(*changes: tuple[int, list[Field]]) -> tuple[Field, ...]:
    """The fields after the classes, with field i replaced for each (i, fields)."""
    changed = [[field] for field in NO_PARTS]
    for i, fields in changes:
        changed[i] = fields
    return tuple(field for fields in changed for field in fields)


OTHER = [(0, 4), (4, 6)]
FAULTY_PRELUDES = {
    "2\\^6 states": prelude_of(table_log=6),
    "2\\^11 states": prelude_of(table_log=11),
    "frequencies above": prelude_of(tables=(Table(7, (100, 29, *[0] * 80)),)),
    "frequencies below": prelude_of(tables=(Table(7, (100, 27, *[0] * 80)),)),
    "a table that no context uses": prelude_of(tables=(TABLE, TABLE)),
    "a context with table 1 of 1": prelude_of(classes=((0, 6), (1, 4), (3, 6))),
    "a shift of 16 bits": prelude_of(classes=((0, 6), (0, 4), (16, 6))),
    "like the one before": prelude_of(classes=((1, 6), *CONTEXT, (0, 1), *CONTEXT)),
    "like the one before has": prelude_of(
        classes=((3, 6), *CONTEXT, (0, 1), *OTHER, (1, 1), (0, 1), *OTHER)
    ),
    "an offset of 8192": prelude_of(parts=parts((0, [(8192, 16)]))),
    "an offset of -8193": prelude_of(parts=parts((0, [(-8193, 16)]))),
    "a shift of 16 bits in values of 16": prelude_of(parts=parts((1, [(1, 1), (0, 4), (16, 6)]))),
    "steps by 8 mantissa bits": prelude_of(parts=parts((3, [(8, 4), *CONTEXT, *CONTEXT]))),
    "a product of rank 65": prelude_of(parts=parts((4, [(65, 7), (9, 8), *CONTEXT * 130]))),
    "exponent field 0": prelude_of(parts=parts((4, [(1, 7), (0, 8), *CONTEXT * 2]))),
    "exponent field 255": prelude_of(parts=parts((4, [(1, 7), (255, 8), *CONTEXT * 2]))),
    "fill a byte": prelude_of(parts=parts((4, [(0, 7), (1, 1)]))),
    "the prelude goes on": prelude_of() + b"\0",
    "the prelude ends early": b"",
    "the stream has no end": prelude_of(parts=parts((2, [(1, 1), *CONTEXT]))),
}


@pytest.mark.parametrize("fault", list(FAULTY_PRELUDES))
def test_a_faulty_prelude_is_refused(fault: str) -> None:
    with pytest.raises(CorruptFrame, match=fault):
        parse_prelude(Words.of(DType.BF16), 3, 3, FAULTY_PRELUDES[fault])


def test_limits_are_those_of_the_words() -> None:
    f32, f64, i16 = (Words.of(dtype) for dtype in (DType.F32, DType.F64, DType.I16))
    steep = prelude_of(parts=parts((3, [(11, 4), *CONTEXT, *CONTEXT])))
    with pytest.raises(CorruptFrame, match="by 11 mantissa bits"):
        parse_prelude(f32, 3, 3, steep)
    decay_steps = prelude_of(parts=parts((3, [(1, 4), *CONTEXT, *CONTEXT])))
    with pytest.raises(CorruptFrame, match="by 1 mantissa bits"):
        parse_prelude(i16, 3, 3, decay_steps)
    product = prelude_of(parts=parts((4, [(1, 7), (9, 8), *CONTEXT * 2])))
    for words in (f64, i16):
        with pytest.raises(CorruptFrame, match="product of rank 1"):
            parse_prelude(words, 3, 3, product)
    halves = prelude_of(parts=parts((4, [(1, 7), (31, 8), *CONTEXT * 2])))
    with pytest.raises(CorruptFrame, match="field 31"):
        parse_prelude(Words.of(DType.F16), 3, 3, halves)
    wide = prelude_of(classes=((0, 6), (0, 4), (63, 6)))
    assert parse_prelude(f64, 3, 3, wide).classes == (Context(0, 63),)
    with pytest.raises(CorruptFrame, match="63 bits in values of 32"):
        parse_prelude(f32, 3, 3, wide)


@pytest.mark.parametrize("scale", [8192, -8193, 32767, -32768])
def test_a_scale_out_of_range_is_refused(scale: int) -> None:
    model = Model(Words.of(DType.BF16), (TABLE,), (Context(0, 0),), rows=Context(0, 12))
    stream = encode_block(model, bytes(4), bytes(4), BlockShape(1, 2), SideValues((scale,)))
    with pytest.raises(CorruptFrame, match="a row scale"):
        decode_block(model, stream, bytes(4), BlockShape(1, 2))
    columns = replace(model, rows=None, columns=Columns(Context(0, 12), (0, scale)))
    with pytest.raises(CorruptFrame, match="a column scale"):
        parse_prelude(model.words, 1, 2, write_prelude(columns))


@pytest.mark.parametrize("flag", [2, -1, 256])
def test_a_flag_that_is_none_is_refused(flag: int) -> None:
    decay_steps = WeightDecaySteps(1, Context(0, 0), Context(0, 0), (0, 1))
    model = Model(Words.of(DType.BF16), (TABLE,), (Context(0, 0),), decay_steps=decay_steps)
    shape = BlockShape(1, 2)
    stream = encode_block(model, bytes(4), bytes(4), shape, SideValues((), (1,)))
    assert decode_block(model, stream, bytes(4), shape) == bytes(4)
    stream = encode_block(model, bytes(4), bytes(4), shape, SideValues((), (flag,)))
    with pytest.raises(CorruptFrame, match="neither 0 nor 1"):
        decode_block(model, stream, bytes(4), shape)


def test_a_column_stream_of_another_width_is_refused() -> None:
    model = SMALL["BF16, all parts"].model
    prelude = write_prelude(model)
    for n_columns in (1, 4, 6, 50):
        with pytest.raises(CorruptFrame):
            parse_prelude(model.words, 3, n_columns, prelude)
