"""Preludes at each limit, and beyond it by one fault alone: what sound ones would be, columns too.

Whoever drops one check of a parser accepts the second prelude of a pair here.
"""

from collections import Counter
from dataclasses import replace

import pytest

from deltahub.codecs import DType
from deltahub.codecs.reference import fm_delta, neuzip_lossless
from deltahub.codecs.reference.bits import Field, write_fields
from deltahub.codecs.reference.coder import Context, Table, table_fields
from deltahub.codecs.reference.fm_delta import Columns, LowRank, Model, WeightDecaySteps, Words
from deltahub.codecs.reference.fm_delta_prelude import model_fields
from support.codecs.kernels import is_delta_prelude, is_float_prelude
from support.codecs.reference_models import table_for

COUNTS = Counter({2: 6, 3: 2, 4: 1})
TABLE = table_for(COUNTS, 82, 7)
NEAR, FAR = Context(0, 3), Context(0, 9)
FRAME = 5, 20

Case = tuple[DType, tuple[int, int], bytes]


def plain(dtype: DType, context: Context = NEAR, **parts: object) -> Model:
    model = Model(Words.of(dtype), (TABLE,), (context,))
    return replace(model, **parts)  # type: ignore[arg-type]  # which parts, the callers know


def case(model: Model, rows: int = 5, columns: int = 20) -> Case:
    dtype = next(dtype for dtype in DType if Words.of(dtype) == model.words)
    return dtype, (rows, columns), fm_delta.write_prelude(model)


def of_table(table: Table) -> Case:
    return case(plain(DType.BF16, tables=(table,)))


def scaled(context: Context) -> Model:
    return plain(DType.F32, columns=Columns(context, (1,) * 20))


def stairs(dtype: DType, bits: int, flags: Context = NEAR, context: Context = NEAR) -> Model:
    return plain(dtype, decay_steps=WeightDecaySteps(bits, flags, context, tuple(range(1 << bits))))


def product(
    dtype: DType,
    rank: int = 1,
    columns: int = 20,
    c0: int = 9,
    left: Context = NEAR,
    right: Context = NEAR,
) -> Model:
    parts = LowRank(c0, (left,) * rank, (right,) * rank, ((3,) * columns,) * rank)
    return plain(dtype, low_rank=parts)


def padded(n_bits: int) -> Case:
    """The last bit of a prelude that has one to fill a byte."""
    fields = model_fields(plain(DType.BF16))
    n_used = sum(width for _, width in fields)
    assert n_used % 8 > 0
    filled: list[Field] = [*fields, (0, -n_used % 8 - 1), (n_bits, 1)]
    return DType.BF16, FRAME, write_fields(filled)


def told_twice(second: Context) -> Case:
    """Two classes, the second told by a context of its own."""
    fields = model_fields(plain(DType.BF16, classes=(NEAR, FAR)))
    at = len(fields) - 6  # its context, then offset, no scales, no staircase and no product
    assert fields[at - 1 : at + 1] == [(FAR.table, 4), (FAR.shift, 6)]
    fields[at - 1 : at + 1] = [(second.table, 4), (second.shift, 6)]
    return DType.BF16, FRAME, write_fields(fields)


LIMITS: dict[str, tuple[Case, Case]] = {
    "tables of 2^7 states": (of_table(TABLE), of_table(table_for(COUNTS, 82, 6))),
    "tables of 2^10 states": tuple(of_table(table_for(COUNTS, 82, n)) for n in (10, 11)),
    "frequencies no less than 2^L": tuple(
        of_table(Table(7, (100, n, *[0] * 80))) for n in (28, 27)
    ),
    "frequencies no more than 2^L": tuple(
        of_table(Table(7, (100, n, *[0] * 80))) for n in (28, 29)
    ),
    "tables that are used": (case(plain(DType.BF16)), case(plain(DType.BF16, tables=(TABLE,) * 2))),
    "classes that differ": (told_twice(FAR), told_twice(NEAR)),
    "bits that fill a byte": (padded(0), padded(1)),
    "an offset below 8192": tuple(case(plain(DType.BF16, offset=n)) for n in (8191, 8192)),
    "an offset from -8192 on": tuple(case(plain(DType.BF16, offset=n)) for n in (-8192, -8193)),
    "ten bits of a staircase": tuple(case(stairs(DType.F32, n)) for n in (10, 11)),
    "a staircase within a mantissa": tuple(case(stairs(DType.BF16, n)) for n in (7, 8)),
    "no staircase of integers": (case(plain(DType.I16)), case(stairs(DType.I16, 1))),
    "rank 64": tuple(case(product(DType.BF16, n, 70), 70, 70) for n in (64, 65)),
    "a rank up to the rows": tuple(case(product(DType.BF16, n)) for n in (5, 6)),
    "a rank up to the columns": tuple(case(product(DType.BF16, n, 5), 20, 5) for n in (5, 6)),
    "no product in F64": (case(plain(DType.F64)), case(product(DType.F64))),
    "no product in F8": (case(plain(DType.F8_E4M3)), case(product(DType.F8_E4M3))),
    "no product of integers": (case(plain(DType.I32)), case(product(DType.I32))),
    "a unit of exponent 1": tuple(case(product(DType.BF16, c0=n)) for n in (1, 0)),
    "a unit below infinity, BF16": tuple(case(product(DType.BF16, c0=n)) for n in (254, 255)),
    "a unit below infinity, F16": tuple(case(product(DType.F16, c0=n)) for n in (30, 31)),
    "a unit below infinity, F32": tuple(case(product(DType.F32, c0=n)) for n in (254, 255)),
}  # type: ignore[assignment]  # the tuples are pairs

# Contexts of all kinds: a shift below the number's bits, and a table that there is.
WIDEST = {
    f"classes of {dtype.name}": (lambda context, dtype=dtype: plain(dtype, context), bits)
    for dtype, bits in ((DType.F8_E5M2, 8), (DType.BF16, 16), (DType.F32, 32))
} | {
    "row scales": (lambda context: plain(DType.F32, rows=context), 16),
    "column scales": (scaled, 16),
    "flags": (lambda context: stairs(DType.F32, 2, flags=context), 16),
    "stairs of F32": (lambda context: stairs(DType.F32, 2, context=context), 32),
    "stairs of BF16": (lambda context: stairs(DType.BF16, 2, context=context), 16),
    "left factors": (lambda context: product(DType.F32, left=context), 16),
    "right factors": (lambda context: product(DType.F32, right=context), 16),
}
for name, (made, n_bits) in WIDEST.items():
    widest, too_wide = (case(made(Context(0, n_bits - less))) for less in (1, 0))
    LIMITS[f"a shift within {name}"] = widest, too_wide


@pytest.mark.parametrize("limit", list(LIMITS))
def test_a_prelude_at_a_limit_is_sound_and_beyond_it_refused(limit: str) -> None:
    sound, faulty = LIMITS[limit]
    assert is_delta_prelude(*sound)
    assert not is_delta_prelude(*faulty)


@pytest.mark.parametrize("name", list(WIDEST))
def test_a_context_has_a_table(name: str) -> None:
    made, _ = WIDEST[name]
    told = fm_delta.write_prelude
    model = made(Context(0, 3))
    # The second table is told to code the columns with, and then not told.
    fields = model_fields(replace(made(Context(1, 3)), tables=(TABLE,)))
    n_own = len(write_fields(model_fields(model)))
    dtype, frame, _ = case(model)
    assert is_delta_prelude(dtype, frame, write_fields(model_fields(model)) + told(model)[n_own:])
    assert not is_delta_prelude(dtype, frame, write_fields(fields) + told(model)[n_own:])


@pytest.mark.parametrize("tail", [b"\0", b"\1"])
def test_nothing_follows_the_fields_of_a_prelude(tail: bytes) -> None:
    dtype, frame, prelude = case(plain(DType.BF16))
    assert is_delta_prelude(dtype, frame, prelude)
    assert not is_delta_prelude(dtype, frame, prelude + tail)


@pytest.mark.parametrize("model", [plain(DType.BF16), plain(DType.F8_E4M3), product(DType.F16)])
def test_fields_that_end_early_are_refused(model: Model) -> None:
    dtype, frame, prelude = case(model)
    assert is_delta_prelude(dtype, frame, prelude)
    for length in range(len(prelude)):
        assert not is_delta_prelude(dtype, frame, prelude[:length])


COLUMN_STREAMS = {
    "scales": scaled(NEAR),
    "a staircase": stairs(DType.F32, 4),
    "a product": product(DType.BF16, 2),
}


def column_stream(model: Model) -> tuple[bytes, bytes]:
    """The fields of a prelude, and its column stream."""
    prelude, fields = fm_delta.write_prelude(model), write_fields(model_fields(model))
    return fields, prelude[len(fields) :]


@pytest.mark.parametrize("model", COLUMN_STREAMS.values(), ids=COLUMN_STREAMS.keys())
def test_a_column_stream_is_read_to_its_end_and_all_lanes_come_to_rest(model: Model) -> None:
    dtype, frame, prelude = case(model)
    fields, stream = column_stream(model)
    assert is_delta_prelude(dtype, frame, prelude)
    number = int.from_bytes(stream, "little")
    n_digits = number.bit_length()
    # A digit more below all others, and each lane's state off by one in its lowest digit.
    changed = [number << 1, *(number ^ 1 << n_digits - 1 - 7 * (lane + 1) for lane in range(32))]
    for other in changed:
        data = other.to_bytes((other.bit_length() + 7) // 8, "little")
        assert not is_delta_prelude(dtype, frame, fields + data)


FLOATS = {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7, DType.F8_E5M2: 2}


def float_prelude(dtype: DType, zero_bits: int, table: Table, n_leading: int = 0) -> bytes:
    model = neuzip_lossless.Model(Words.of(dtype), zero_bits, table, n_leading)
    return neuzip_lossless.write_prelude(model)


@pytest.mark.parametrize("dtype", list(FLOATS))
def test_leading_digits_are_limited_by_mantissa_zero_bits_and_table(dtype: DType) -> None:
    n_exponent_bits = Words.of(dtype).exponent_bits
    most = min(11 - n_exponent_bits, FLOATS[dtype])
    zero_bits = FLOATS[dtype] - most
    for n_leading in range(most + 2):
        table = table_for(COUNTS, 2 + (1 << n_exponent_bits + n_leading), 10)
        prelude = float_prelude(dtype, zero_bits, table, n_leading)
        assert is_float_prelude(dtype, prelude) == (n_leading <= most)
    if most > 0:
        table = table_for(COUNTS, 2 + (1 << n_exponent_bits + most), 10)
        assert not is_float_prelude(dtype, float_prelude(dtype, zero_bits + 1, table, most))


@pytest.mark.parametrize("dtype", list(FLOATS))
def test_a_prelude_of_floats_is_sound_up_to_its_limits(dtype: DType) -> None:
    n_symbols = 2 + (1 << Words.of(dtype).exponent_bits)
    for table_log in (7, 10):
        table = table_for(COUNTS, n_symbols, table_log)
        for zero_bits in (0, FLOATS[dtype]):
            prelude = float_prelude(dtype, zero_bits, table)
            assert is_float_prelude(dtype, prelude)
            assert not is_float_prelude(dtype, prelude + b"\0")
            for length in range(len(prelude)):
                assert not is_float_prelude(dtype, prelude[:length])
        assert not is_float_prelude(dtype, float_prelude(dtype, FLOATS[dtype] + 1, table))
    for table_log in (6, 11):
        table = table_for(COUNTS, n_symbols, table_log)
        assert not is_float_prelude(dtype, float_prelude(dtype, 0, table))
    for second in (27, 29):
        table = Table(7, (100, second, *[0] * (n_symbols - 2)))
        assert not is_float_prelude(dtype, float_prelude(dtype, 0, table))


def test_bits_that_fill_the_last_byte_of_a_prelude_of_floats_are_zero() -> None:
    table = table_for(COUNTS, 258, 7)
    prelude = float_prelude(DType.BF16, 0, table)
    n_used = 4 + 6 + 4 + sum(width for _, width in table_fields(table, 1))
    assert len(prelude) == (n_used + 7) // 8
    assert n_used % 8 > 0
    for bit in range(n_used % 8, 8):
        changed = prelude[:-1] + bytes([prelude[-1] | 1 << bit])
        assert not is_float_prelude(DType.BF16, changed)
