"""SQL expressions that differ between SQLite and PostgreSQL."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, String, cast, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def total(column: Any) -> ColumnElement[int]:
    """The sum as an integer, 0 over no rows: PostgreSQL sums 64-bit integers to a decimal."""
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def contains(
    text: ColumnElement[str] | InstrumentedAttribute[str], part: str
) -> ColumnElement[bool]:
    """True where a text contains `part`. LIKE has wildcards, and ends at a NUL in SQLite."""
    return _Position(text, part) > 0


def by_code_point(text: ColumnElement[str]) -> ColumnElement[str]:
    """The text, compared by code point as in Python, whatever the collation of the database."""
    return _ByCodePoint(text)


class _ByCodePoint(FunctionElement[str]):
    """A text with the collation that SQLite has anyway, and PostgreSQL calls C."""

    type = String()
    inherit_cache = True


@compiles(_ByCodePoint)
def _plain(element: _ByCodePoint, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)})"


@compiles(_ByCodePoint, "postgresql")
def _in_c(element: _ByCodePoint, compiler: SQLCompiler, **options: Any) -> str:
    return f'({compiler.process(element.clauses, **options)}) COLLATE "C"'


class _Position(FunctionElement[int]):
    """Position of a substring in a text, from 1; 0 if the text does not contain it."""

    type = Integer()
    inherit_cache = True


@compiles(_Position)
def _instr(element: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"instr({compiler.process(element.clauses, **options)})"


@compiles(_Position, "postgresql")
def _strpos(element: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **options)})"


def ascii_lower(text: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[str]:
    """A name in lower case, as Python has it, whatever language the database is for.

    In a Turkish database of PostgreSQL the lower case of I is no i.
    """
    return _Lower(text)


class _Lower(FunctionElement[str]):
    """The lower case of ASCII letters; other letters may stay as they are."""

    type = String()
    inherit_cache = True


@compiles(_Lower)
def _lower(element: _Lower, compiler: SQLCompiler, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


@compiles(_Lower, "postgresql")
def _lower_c(element: _Lower, compiler: SQLCompiler, **options: Any) -> str:
    return f'lower({compiler.process(element.clauses, **options)} COLLATE "C")'
