"""Values of SQLite in PostgreSQL's binary format, and values that PostgreSQL cannot hold."""

import struct
from typing import Any

import pytest
from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Integer, LargeBinary, String, Text

from deltahub.registry.db.columns import Id, PathText, UtcDateTime
from deltahub.registry.maintenance.database_move.binary_rows import Digest, RowEncoder, Unfit
from deltahub.registry.maintenance.database_move.tables import copied_tables


def encoded(kind: Any, value: Any) -> bytes:
    """The field's bytes, without those of the row around it."""
    row = RowEncoder([Column("c", kind, nullable=True)]).encode([value])
    assert row[:2] == struct.pack(">h", 1)
    (length,) = struct.unpack(">i", row[2:6])
    assert length == (-1 if value is None else len(row) - 6)
    return row[6:]


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (Integer, -(1 << 31), b"\x80\0\0\0"),
        (BigInteger, (1 << 63) - 1, b"\x7f" + b"\xff" * 7),
        (Id, 1, b"\0" * 7 + b"\1"),
        (Boolean, 1, b"\1"),
        (Boolean, 0, b"\0"),
        (Float, -0.5, b"\xbf\xe0\0\0\0\0\0\0"),
        (LargeBinary(2), b"\0\xff", b"\0\xff"),
        (String(3), "a\u0301\U0001f600", b"a\xcc\x81\xf0\x9f\x98\x80"),
        (PathText, "", b""),
        (Text, None, b""),
        (JSON, '{"a": 1.50}', b'{"a": 1.50}'),
        (JSON, "null", b"null"),
        (UtcDateTime, "2000-01-01 00:00:01.000002", struct.pack(">q", 1_000_002)),
        (UtcDateTime, "1999-12-31 23:59:59.999999", struct.pack(">q", -1)),
    ],
)
def test_each_kind_of_column_has_one_form(kind: Any, value: Any, field: bytes) -> None:
    assert encoded(kind, value) == field


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Integer, 1 << 31, "out of the range of 32 bits"),
        (Integer, "1", "text where an integer belongs"),
        (BigInteger, 1.0, "a number where an integer belongs"),
        (Boolean, 2, "2 is neither true"),
        (Float, 1, "an integer where a number belongs"),
        (LargeBinary, "ab", "text where bytes belongs"),
        (String(3), "abcd", "4 characters, and the column holds 3"),
        (Text, "a\0b", "NUL"),
        (Text, b"ab", "bytes where text belongs"),
        (JSON, "{", "no JSON"),
        (JSON, "[Infinity]", "Infinity, which is no number"),
        (JSON, '"\0"', "no JSON"),
        (UtcDateTime, "yesterday", "no time"),
        (UtcDateTime, "2000-01-01 00:00:00+01:00", "a time zone"),
    ],
)
def test_what_postgresql_cannot_hold_is_refused(kind: Any, value: Any, reason: str) -> None:
    encoder = RowEncoder([Column("first", Integer), Column("second", kind)])
    with pytest.raises(Unfit, match=reason):
        encoder.encode([1, value])
    column, said = encoder.fault([1, value])
    assert column == "second"
    assert reason in said


def test_null_is_refused_where_it_may_not_be() -> None:
    encoder = RowEncoder([Column("c", Integer, nullable=False)])
    with pytest.raises(Unfit, match="NULL where an integer belongs"):
        encoder.encode([None])


def test_a_digest_counts_and_does_not_depend_on_the_order() -> None:
    one, other, more = Digest(), Digest(), Digest()
    for row in (b"a", b"b", b"b"):
        one.add(row)
    for row in (b"b", b"a", memoryview(b"b")):
        other.add(row)
    for row in (b"a", b"a", b"b"):
        more.add(row)
    assert one == other
    assert one != more


def test_every_column_of_every_table_can_be_copied() -> None:
    tables = copied_tables()
    assert {"suspects", "tree_links", "jobs", "public_names"} <= {table.name for table in tables}
    for table in tables:
        RowEncoder(table.columns)
