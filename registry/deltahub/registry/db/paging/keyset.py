"""A page of any query, in any of some orders, without counting the rows before it.

The cursor of a page has the sorted value and the key of its last row, so that a page costs the same
wherever it is, and rows that come or go meanwhile shift nothing.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import and_, or_

from deltahub.registry.db.session import ReadSession
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted

T = TypeVar("T")

MOST: Final = 1000
_WRONG: Final = "this page does not go on from there: begin with the first page again"


@dataclass(frozen=True)
class Asked:
    """Which page somebody wants. sort: the name of a column, with - before it to turn the order.

    after: the cursor of the page before; None for the first. limit: rows, at most MOST.
    """

    sort: str | None = None
    after: str | None = None
    limit: int = 50


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows of a list. after: the cursor of the next page; None if this is the last."""

    items: list[T]
    after: str | None = None


def read_page(
    session: ReadSession,
    query: Any,
    columns: Mapping[str, Any],
    key: Any,
    asked: Asked,
) -> Page[Any]:
    """The rows of a page. InvalidRequest for an order or a cursor that there is not.

    query: a Select. Its rows get two columns more, the sorted value and the key.
    columns: name of an order -> its column, never NULL; the first is the order without `sort`.
    key: what no two rows have in common.
    """
    name, is_descending = order_of(asked.sort, columns)
    column = columns[name]
    if asked.after is not None:
        value, last = _read(asked.after, name)
        if not (_fits(value, column) and _fits(last, key)):
            raise InvalidRequest(_WRONG)
        is_next = column < value if is_descending else column > value
        is_later = key < last if is_descending else key > last
        query = query.where(or_(is_next, and_(column == value, is_later)))
    order = (column.desc(), key.desc()) if is_descending else (column, key)
    limit = min(max(asked.limit, 1), MOST)
    query = query.add_columns(column.label("sort_value"), key.label("sort_key"))
    rows = list(session.execute(query.order_by(*order).limit(limit + 1)))
    after = None
    if len(rows) > limit:
        last_row = rows[limit - 1]
        after = _written(name, last_row.sort_value, last_row.sort_key)
    return Page(rows[:limit], after)


def order_of(sort: str | None, columns: Mapping[str, Any]) -> tuple[str, bool]:
    """(name of the column, whether the order is turned). InvalidRequest."""
    name = next(iter(columns)) if sort is None else sort.removeprefix("-")
    if name not in columns:
        raise InvalidRequest(f"{quoted(name)} is no order: one of {', '.join(columns)}")
    return name, sort is not None and sort.startswith("-")


def _written(name: str, value: Any, key: Any) -> str:
    kind = "t" if isinstance(value, datetime) else "v"
    plain = value.isoformat() if isinstance(value, datetime) else value
    text = json.dumps([name, kind, plain, key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read(cursor: str, name: str) -> tuple[Any, Any]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        of, kind, value, key = json.loads(base64.urlsafe_b64decode(padded))
        if of != name or kind not in "tv":
            raise ValueError("the cursor of another order")
        for each in (value, key):
            if "\0" in str(each):
                raise ValueError("no value of a column")
        return (datetime.fromisoformat(value) if kind == "t" else value), key
    except (ValueError, TypeError, binascii.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(_WRONG) from error


def _fits(value: Any, column: Any) -> bool:
    """Whether a value that a caller sent has the type of the column, as databases demand."""
    kind = column.type.python_type
    is_small = not isinstance(value, int) or abs(value) < 1 << 63
    return isinstance(value, kind) and not isinstance(value, bool) and is_small
