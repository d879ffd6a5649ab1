"""SQL expressions that differ between SQLite and PostgreSQL."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, cast, func
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
