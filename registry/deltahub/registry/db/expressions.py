"""What SQLite and PostgreSQL say in different words."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, String, cast, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def total(column: Any) -> ColumnElement[int]:
    """The sum, 0 over no rows, as an integer: PostgreSQL makes a decimal of 64-bit numbers."""
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def contains(text: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """True where `part` is in a text. LIKE has signs of its own, and ends at a NUL in SQLite."""
    return _Position(text, part) > 0


def by_code_point(text: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[str]:
    """A text that is compared and ordered as Python does it, whatever the database's collation."""
    return _Plain(text)


class _Plain(FunctionElement[str]):
    type = String()
    inherit_cache = True


@compiles(_Plain)
def _as_it_is(element: _Plain, compiler: SQLCompiler, **words: Any) -> str:
    return compiler.process(element.clauses, **words)


@compiles(_Plain, "postgresql")
def _collated(element: _Plain, compiler: SQLCompiler, **words: Any) -> str:
    return f'({compiler.process(element.clauses, **words)}) COLLATE "C"'


class _Position(FunctionElement[int]):
    """Where a text begins in another, from 1; 0 for nowhere."""

    type = Integer()
    inherit_cache = True


@compiles(_Position)
def _instr(element: _Position, compiler: SQLCompiler, **words: Any) -> str:
    return f"instr({compiler.process(element.clauses, **words)})"


@compiles(_Position, "postgresql")
def _strpos(element: _Position, compiler: SQLCompiler, **words: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **words)})"
