"""Column types for SQLite that refuse values of another type than the column's.

SQLite returns what the file holds, so a damaged row may have text in a column of numbers, or text
that is no JSON. Without these types such a value would fail later, far from the database, and look
like a fault of the hub. PostgreSQL checks types itself.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Engine,
    Float,
    Integer,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.dialects.sqlite import DATETIME
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from deltahub.registry.errors import DatabaseDamaged, DataLost

_Process: TypeAlias = Callable[[Any], Any]

DAMAGED: Final = (
    "the hub's database is damaged; its operator runs `deltahub fsck`, which says where:"
)
_NAMES: Final = {
    int: "an integer",
    float: "a number",
    str: "text",
    bytes: "bytes",
    datetime: "time",
    dict: "JSON object",
}


def check_types(engine: Engine) -> None:
    """Make every column of this engine's queries raise DataLost for a value of a wrong type."""
    engine.dialect.colspecs = {**engine.dialect.colspecs, **_CHECKED}


class _Checked(TypeEngine[Any]):
    """A mixin for a column type.

    stored: the type that SQLite returns for a sound value. decoded: what a text encodes.
    """

    stored: type
    decoded: type = object

    def result_processor(self, dialect: Dialect, coltype: object) -> _Process:
        stored, decoded = self.stored, self.decoded
        decode = super().result_processor(dialect, coltype)

        def check(value: Any) -> Any:
            if value is None or type(value) is stored:
                return value
            raise _damaged(stored, value)

        def check_and_decode(value: Any) -> Any:
            if value is None:
                return None
            if type(value) is not stored:
                raise _damaged(stored, value)
            try:
                found = decode(value)  # type: ignore[misc]  # without it, check() is returned
            except ValueError as exc:
                # Without the value, because guests see this message.
                raise DatabaseDamaged(
                    f"{DAMAGED} a row holds text that is no {_NAMES[decoded]}"
                ) from exc
            if found is not None and not isinstance(found, decoded):
                raise DatabaseDamaged(f"{DAMAGED} a row holds text that is no {_NAMES[decoded]}")
            return found

        return check if decode is None else check_and_decode


def _damaged(stored: type, value: object) -> DataLost:
    found = _NAMES.get(type(value), type(value).__name__)
    return DatabaseDamaged(f"{DAMAGED} a row holds {found} where {_NAMES[stored]} belongs")


class _Integer(_Checked, Integer):
    stored = int


class _BigInteger(_Checked, BigInteger):
    stored = int


class _Boolean(_Checked, Boolean):
    stored = int


class _Float(_Checked, Float[float]):
    stored = float


class _String(_Checked, String):
    stored = str


class _Text(_Checked, Text):
    stored = str


class _Bytes(_Checked, LargeBinary):
    stored = bytes


class _DateTime(_Checked, DATETIME):
    stored = str
    decoded = datetime


class _Json(_Checked, JSON):
    """The models have JSON columns of objects alone."""

    stored = str
    decoded = dict


_CHECKED: Final[dict[type[TypeEngine[Any]], type[TypeEngine[Any]]]] = {
    Integer: _Integer,
    BigInteger: _BigInteger,
    Boolean: _Boolean,
    Float: _Float,
    String: _String,
    Text: _Text,
    LargeBinary: _Bytes,
    DateTime: _DateTime,
    JSON: _Json,
}
