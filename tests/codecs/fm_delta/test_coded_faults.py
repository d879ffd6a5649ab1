"""One fault each: what kernels and reference both refuse, and the yardstick that both accept."""

from collections import Counter
from dataclasses import replace

import pytest

from deltahub.codecs import DType
from deltahub.codecs.reference import fm_delta, neuzip_lossless
from deltahub.codecs.reference.bits import Field, write_fields
from deltahub.codecs.reference.coder import Context, Table, table_fields
from deltahub.codecs.reference.fm_delta import (
    BlockShape,
    Columns,
    LowRank,
    Model,
    SideValues,
    WeightDecaySteps,
    Words,
)
from support.codecs.coded_frames import float_frame
from support.codecs.kernels import delta_outcome, float_outcome
from support.codecs.reference_models import table_for

TABLE = table_for(Counter({2: 6, 3: 2, 4: 1}), 82, 7)
CONTEXT: list[Field] = [(0, 4), (3, 6)]  # table 0, shift 3
CLASSES: list[Field] = [(0, 6), *CONTEXT]
OTHER: list[Field] = [(0, 4), (4, 6)]
# Behind the classes: offset, row scales, column scales, staircase, rank.
PARTS: list[list[Field]] = [[(0, 16)], [(0, 1)], [(0, 1)], [(0, 4)], [(0, 7)]]


def prelude_of(
    *parts: tuple[int, list[Field]],
    table_log: int = 7,
    tables: tuple[Table, ...] = (TABLE,),
    classes: list[Field] = CLASSES,
) -> bytes:
    """A prelude's fields, sound but for what is given; parts: what takes the place of a part."""
    fields: list[Field] = [(table_log, 4), (len(tables) - 1, 4)]
    for table in tables:
        fields += table_fields(table, 2)
    chosen = dict(enumerate(PARTS)) | dict(parts)
    return write_fields([*fields, *classes, *(field for part in chosen.values() for field in part)])


def rank(n: int, c0: int) -> tuple[int, list[Field]]:
    return 4, [(n, 7), (c0, 8), (0, 1), *[*CONTEXT, (0, 4)] * (2 * n)]


def factor(*context: Field) -> tuple[int, list[Field]]:
    """A product of rank 1 whose right factor has this context."""
    return 4, [(1, 7), (9, 8), (0, 1), *CONTEXT, (0, 4), *context, (0, 4)]


def unary(*ones: int) -> list[Field]:
    return [((1 << n) - 1, n + 1) for n in ones]


def table_told(*fields: Field) -> bytes:
    """A prelude whose only table is told by these fields."""
    rest = [*CLASSES, *(field for part in PARTS for field in part)]
    return write_fields([(7, 4), (0, 4), *fields, *rest])


FAULTY_PRELUDES: dict[str, tuple[DType, bytes]] = {
    "a table too small": (DType.BF16, prelude_of(table_log=6)),
    "a table too large": (DType.BF16, prelude_of(table_log=11)),
    "frequencies above the sum": (
        DType.BF16, prelude_of(tables=(Table(7, (100, 29, *[0] * 80)),))
    ),
    "frequencies below the sum": (
        DType.BF16, prelude_of(tables=(Table(7, (100, 27, *[0] * 80)),))
    ),
    "a frequency of nine bits": (DType.BF16, table_told(*unary(18), (0, 8))),
    "a frequency of minus one bit": (DType.BF16, table_told(*unary(1))),
    "a step of 23 ones": (DType.BF16, table_told(*unary(23))),
    "frequencies that fall below no bits": (DType.BF16, table_told(*unary(2, 0, 3))),
    "a table that no context uses": (DType.BF16, prelude_of(tables=(TABLE, TABLE))),
    "a context without a table": (DType.BF16, prelude_of(classes=[(0, 6), (1, 4), (3, 6)])),
    "a shift of all bits": (DType.BF16, prelude_of(classes=[(0, 6), (0, 4), (16, 6)])),
    "a shift of all bits of an F8": (DType.F8_E4M3, prelude_of(classes=[(0, 6), (0, 4), (8, 6)])),
    "a class like the one before": (
        DType.BF16, prelude_of(classes=[(1, 6), *CONTEXT, (0, 1), *CONTEXT])
    ),
    "a class like the one before the same": (
        DType.BF16,
        prelude_of(classes=[(3, 6), *CONTEXT, (0, 1), *OTHER, (1, 1), (0, 1), *OTHER]),
    ),
    "an offset above": (DType.BF16, prelude_of((0, [(8192, 16)]))),
    "an offset below": (DType.BF16, prelude_of((0, [(-8193, 16)]))),
    "a shift of all bits of a row scale": (
        DType.F32, prelude_of((1, [(1, 1), (0, 4), (16, 6)]))
    ),
    "row scales of a table that is not there": (
        DType.F32, prelude_of((1, [(1, 1), (1, 4), (0, 6)]))
    ),
    "a staircase over the sign": (DType.BF16, prelude_of((3, [(8, 4), *CONTEXT, *CONTEXT]))),
    "a staircase of eleven bits": (DType.F32, prelude_of((3, [(11, 4), *CONTEXT, *CONTEXT]))),
    "a staircase of integers": (DType.I16, prelude_of((3, [(1, 4), *CONTEXT, *CONTEXT]))),
    "a rank of 65": (DType.BF16, prelude_of(rank(65, 9))),
    "a rank above the rows": (DType.BF16, prelude_of(rank(6, 9))),
    "a rank of F64": (DType.F64, prelude_of(rank(1, 9))),
    "a rank of integers": (DType.I32, prelude_of(rank(1, 9))),
    "a factor of a table that is not there": (DType.BF16, prelude_of(factor((1, 4), (0, 6)))),
    "a shift of all bits of a factor": (DType.F32, prelude_of(factor((0, 4), (16, 6)))),
    "a unit of exponent 0": (DType.BF16, prelude_of(rank(1, 0))),
    "a unit of the greatest exponent": (DType.BF16, prelude_of(rank(1, 255))),
    "a unit of the greatest exponent of F16": (DType.F16, prelude_of(rank(1, 31))),
    "a set bit that fills a byte": (DType.BF16, prelude_of((4, [(0, 7), (1, 1)]))),
    "a byte after the end": (DType.BF16, prelude_of() + b"\0"),
    "no columns": (DType.BF16, prelude_of((2, [(1, 1), *CONTEXT]))),
    "columns of junk": (DType.BF16, prelude_of((2, [(1, 1), *CONTEXT])) + b"\1" * 60),
}  # fmt: skip
STREAM = fm_delta.encode_block(
    fm_delta.parse_prelude(Words.of(DType.BF16), 5, 20, prelude_of()),
    bytes(200), bytes(200), BlockShape(5, 20),
)[4:]  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTY_PRELUDES))
def test_a_faulty_prelude_is_refused(fault: str) -> None:
    dtype, prelude = FAULTY_PRELUDES[fault]
    base = bytes(100 * dtype.itemsize)
    assert delta_outcome(dtype, (5, 20), prelude, STREAM, base, BlockShape(5, 20)) is None


def test_a_prelude_without_faults_is_the_yardstick() -> None:
    for prelude in (prelude_of(), table_told(*table_fields(TABLE, 2))):
        decoded = delta_outcome(DType.BF16, (5, 20), prelude, STREAM, bytes(200), BlockShape(5, 20))
        assert decoded == bytes(200)


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        ("empty", b""),
        ("no marker bit", b"\0"),
        ("only a marker bit", b"\1"),
        ("states alone", b"\0" * 28 + b"\1"),
        ("zero bytes after the marker", STREAM + b"\0"),
        ("all ones", b"\xff" * 64),
    ],
)
def test_a_faulty_stream_is_refused(fault: str, stream: bytes) -> None:
    shape = BlockShape(5, 20)
    decoded = delta_outcome(DType.BF16, (5, 20), prelude_of(), stream, bytes(200), shape)
    assert decoded is None, fault


def test_a_stream_without_its_marker_is_refused() -> None:
    """Where the marker has a byte of its own, all that is left of it is a byte of zeros."""
    n_checked = 0
    for columns in range(1, 120):
        model = fm_delta.parse_prelude(Words.of(DType.BF16), 1, columns, prelude_of())
        shape, words = BlockShape(1, columns), bytes(2 * columns)
        stream = fm_delta.encode_block(model, words, words, shape)[4:]
        if stream[-1] != 1:
            continue
        for changed in (stream[:-1] + b"\0", stream[:-1]):
            frame = (1, columns)
            assert delta_outcome(DType.BF16, frame, prelude_of(), changed, words, shape) is None
        n_checked += 1
    assert n_checked > 5


def test_a_stream_that_ends_in_another_state_is_refused() -> None:
    """The lanes' last states are prescribed, so that words have few streams."""
    stream = int.from_bytes(STREAM, "little")
    n_digits = stream.bit_length() - 1
    for lane in range(32):
        changed = stream ^ 1 << (n_digits - 7 * (lane + 1))
        data = changed.to_bytes((changed.bit_length() + 7) // 8, "little")
        shape = BlockShape(5, 20)
        decoded = delta_outcome(DType.BF16, (5, 20), prelude_of(), data, bytes(200), shape)
        assert decoded is None, lane


WIDE_TABLE = table_for(Counter({2: 6, 3: 2, 4: 1, 40: 1}), 82, 7)
PLAIN = Model(Words.of(DType.BF16), (WIDE_TABLE,), (Context(0, 0),))
SMALL = BlockShape(2, 40)


def plain_outcome(model: Model, sides: SideValues) -> bytes | None:
    stream = fm_delta.encode_block(model, bytes(160), bytes(160), SMALL, sides)[4:]
    prelude = fm_delta.write_prelude(model)
    return delta_outcome(DType.BF16, (2, 40), prelude, stream, bytes(160), SMALL)


@pytest.mark.parametrize("scale", [-8193, -8192, 8191, 8192, 32767, -32768])
def test_scales_lie_within_their_limits(scale: int) -> None:
    expected = bytes(160) if -8192 <= scale <= 8191 else None
    rows = replace(PLAIN, rows=Context(0, 12))
    assert plain_outcome(rows, SideValues((0, scale))) == expected
    columns = replace(PLAIN, columns=Columns(Context(0, 12), (*[0] * 39, scale)))
    assert plain_outcome(columns, SideValues()) == expected


@pytest.mark.parametrize("flag", [0, 1, 2, -1, 256])
def test_flags_are_zero_or_one(flag: int) -> None:
    model = replace(PLAIN, decay_steps=WeightDecaySteps(1, Context(0, 0), Context(0, 0), (0, 1)))
    expected = bytes(160) if flag in (0, 1) else None
    assert plain_outcome(model, SideValues((), (1, flag))) == expected


@pytest.mark.parametrize("n_numbers", [39, 40, 41])
def test_columns_are_as_many_as_the_frame_has(n_numbers: int) -> None:
    expected = bytes(160) if n_numbers == 40 else None
    scales = replace(PLAIN, columns=Columns(Context(0, 0), (3,) * n_numbers))
    product = replace(PLAIN, low_rank=LowRank(9, (Context(0, 0),), (Context(0, 0),), ((7,) * 40,)))
    right = ((7,) * n_numbers,)
    short = replace(product, low_rank=LowRank(9, (Context(0, 0),), (Context(0, 0),), right))
    streams = (
        (scales, replace(scales, columns=Columns(Context(0, 0), (3,) * 40)), SideValues()),
        (short, product, SideValues((), (), ((0, 0),))),
    )
    for told, coded, sides in streams:
        stream = fm_delta.encode_block(coded, bytes(160), bytes(160), SMALL, sides)[4:]
        prelude = fm_delta.write_prelude(told)
        decoded = delta_outcome(DType.BF16, (2, 40), prelude, stream, bytes(160), SMALL)
        assert decoded == expected


FLOAT_CASE = float_frame(DType.BF16, 300)
FLOAT_MODEL = neuzip_lossless.parse_prelude(Words.of(DType.BF16), FLOAT_CASE.body.prelude)
FAULTY_FLOATS = {
    "a table too small": replace(FLOAT_MODEL, table=Table(6, FLOAT_MODEL.table.frequencies)),
    "a table too large": replace(FLOAT_MODEL, table=Table(11, FLOAT_MODEL.table.frequencies)),
    "more zero bits than a mantissa has": replace(FLOAT_MODEL, zero_bits=8),
    "63 zero bits": replace(FLOAT_MODEL, zero_bits=63),
    "frequencies above the sum": replace(
        FLOAT_MODEL, n_leading=0, table=Table(7, (100, 29, *[0] * 256))
    ),
    "frequencies below the sum": replace(
        FLOAT_MODEL, n_leading=0, table=Table(7, (100, 27, *[0] * 256))
    ),
    "more leading digits than a table has room for": replace(FLOAT_MODEL, n_leading=4),
    "leading digits that are zero bits": replace(FLOAT_MODEL, n_leading=2, zero_bits=6),
}


@pytest.mark.parametrize("fault", list(FAULTY_FLOATS))
def test_a_faulty_prelude_of_floats_is_refused(fault: str) -> None:
    prelude = neuzip_lossless.write_prelude(FAULTY_FLOATS[fault])
    assert float_outcome(DType.BF16, prelude, FLOAT_CASE.stream(), 300) is None


def test_a_prelude_of_floats_without_faults_is_the_yardstick() -> None:
    prelude = neuzip_lossless.write_prelude(FLOAT_MODEL)
    decoded = float_outcome(DType.BF16, prelude, FLOAT_CASE.stream(), 300)
    assert decoded == FLOAT_CASE.source
    # All of a mantissa may be zero: the stream then says other words, if any.
    only_signs = neuzip_lossless.write_prelude(replace(FLOAT_MODEL, zero_bits=7, n_leading=0))
    assert float_outcome(DType.BF16, only_signs, FLOAT_CASE.stream(), 300) is None
