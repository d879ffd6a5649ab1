"""Rows of SQLite in PostgreSQL's binary COPY format, or the reason why PostgreSQL cannot hold them.

The format has one form for each value, so both databases give the same bytes for equal rows. These
bytes are what is sent, and what is hashed on both sides.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import xxhash
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    String,
)

from deltahub.registry.db.columns import UtcDateTime

# Before the first row: signature, flags, and the length of an extension, which is empty.
HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
# After the last row.
TRAILER: Final = struct.pack(">h", -1)
_NULL: Final = struct.pack(">i", -1)
_TRUE: Final = struct.pack(">ib", 1, 1)
_FALSE: Final = struct.pack(">ib", 1, 0)

# PostgreSQL counts microseconds from here.
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_length = struct.Struct(">i").pack
_n_fields = struct.Struct(">h").pack
_int4_field = struct.Struct(">ii").pack
_int8_field = struct.Struct(">iq").pack
_float8_field = struct.Struct(">id").pack

_Encoder: TypeAlias = Callable[[Any], bytes]


class Unfit(ValueError):
    """PostgreSQL cannot hold the value, or it is not of the column's type. The text says why."""


@dataclass
class Digest:
    """The number of rows of a table, and the sum of their hashes, in whatever order they come."""

    n_rows: int = 0
    hash_sum: int = 0

    def add(self, row: bytes | memoryview) -> None:
        self.n_rows += 1
        self.hash_sum += xxhash.xxh3_128_intdigest(row)


class RowEncoder:
    """Encodes rows of these columns."""

    def __init__(self, columns: Sequence[Column[Any]]) -> None:
        self._columns = columns
        self._head = _n_fields(len(columns))
        self._fields = [(_encoder_of(column), bool(column.nullable)) for column in columns]

    def encode(self, values: Sequence[Any]) -> bytes:
        """The row with these values; Unfit."""
        parts = [self._head]
        for value, (encode, is_nullable) in zip(values, self._fields, strict=True):
            parts.append(_NULL if value is None and is_nullable else encode(value))
        return b"".join(parts)

    def fault(self, values: Sequence[Any]) -> tuple[str, str]:
        """(column, reason) of the first value that encode() refuses."""
        for column, value, (encode, is_nullable) in zip(
            self._columns, values, self._fields, strict=True
        ):
            if value is None and is_nullable:
                continue
            try:
                encode(value)
            except Unfit as exc:
                return column.name, str(exc)
        raise AssertionError("the row has no fault")


def _encoder_of(column: Column[Any]) -> _Encoder:
    # From the narrower type to the wider: BigInteger is an Integer, Text is a String.
    encoders: tuple[tuple[type, _Encoder], ...] = (
        (UtcDateTime, _moment),
        (Boolean, _boolean),
        (BigInteger, _int8),
        (Integer, _int4),
        (Float, _float8),
        (JSON, _json),
        (LargeBinary, _bytes),
    )
    for kind, encode in encoders:
        if isinstance(column.type, kind):
            return encode
    if isinstance(column.type, String):
        return partial(_text, column.type.length)
    raise AssertionError(f"{column} has a type that no move has copied yet: {column.type!r}")


def _int4(value: Any) -> bytes:
    _require(int, value)
    try:
        return _int4_field(4, value)
    except struct.error as exc:
        raise Unfit(f"{value} is out of the range of 32 bits") from exc


def _int8(value: Any) -> bytes:
    _require(int, value)
    return _int8_field(8, value)  # SQLite has no more than 64 bits either


def _boolean(value: Any) -> bytes:
    _require(int, value)
    if value not in (0, 1):
        raise Unfit(f"{value} is neither true (1) nor false (0)")
    return _TRUE if value else _FALSE


def _float8(value: Any) -> bytes:
    _require(float, value)
    return _float8_field(8, value)


def _bytes(value: Any) -> bytes:
    _require(bytes, value)
    return _length(len(value)) + bytes(value)


def _text(max_length: int | None, value: Any) -> bytes:
    _require(str, value)
    if "\0" in value:
        raise Unfit("text with a NUL character, which PostgreSQL cannot hold")
    if max_length is not None and len(value) > max_length:
        raise Unfit(f"text of {len(value)} characters, and the column holds {max_length}")
    encoded = value.encode()
    return _length(len(encoded)) + bytes(encoded)


def _json(value: Any) -> bytes:
    _require(str, value)
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise Unfit(f"text that is no JSON: {exc}") from exc
    return _text(None, value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number there")


def _moment(value: Any) -> bytes:
    _require(str, value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as exc:
        raise Unfit("text that is no time") from exc
    if moment.tzinfo is not None:
        raise Unfit("a time with a time zone, and the hub writes none")
    return _int8_field(8, (moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND)


_NAMES: Final[dict[type, str]] = {
    int: "an integer", float: "a number", str: "text", bytes: "bytes", type(None): "NULL",
}  # fmt: skip


def _require(kind: type, value: object) -> None:
    """Unfit unless the value is of this type: a damaged row may have any other."""
    if type(value) is not kind:
        raise Unfit(f"{_NAMES[type(value)]} where {_NAMES[kind]} belongs")
