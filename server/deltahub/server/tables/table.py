"""A table: its columns, orders and filters, and a function that reads a page of its rows.

Pages, exports and the API are made from one Table, so that all of them show the same rows.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.registry.reports.lists.pages import Asked, Page
from deltahub.server.hub import Hub

Kind = Literal["text", "size", "number", "time", "percent", "flag", "list"]
Read = Callable[[Hub, Caller, Asked, Mapping[str, str]], Page[Any]]

# Rows of one export; the rest follows from where it ended.
MOST_EXPORTED: Final = 10_000
_AT_ONCE: Final = 1000
# What a spreadsheet takes for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


@dataclass(frozen=True)
class Column:
    """key: the attribute of a row, and the name in exports. sort: the name of its order, if any.

    is_wide: its text may be long. is_shown: pages have it, and not exports alone.
    """

    key: str
    label: str
    kind: Kind = "text"
    sort: str | None = None
    is_wide: bool = False
    is_shown: bool = True


@dataclass(frozen=True)
class Filter:
    """What a list can be filtered by. choices: (value, label) of a choice; empty: any text."""

    key: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    is_date: bool = False
    default: str = ""


@dataclass(frozen=True)
class Table:
    """sort: the order at first, with - before it if it is turned. nothing: what an empty one says:
    a title and a sentence.
    """

    name: str
    columns: tuple[Column, ...]
    read: Read
    sort: str
    filters: tuple[Filter, ...] = ()
    nothing: tuple[str, str] = ("Nothing here", "There are no rows.")
    about: str = field(default="", kw_only=True)

    def page(self, hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
        """The rows of a page. given: values of filters. InvalidRequest."""
        known = {each.key: each for each in self.filters}
        wanted = {each.key: each.default for each in self.filters}
        for key, value in given.items():
            if key not in known:
                names = ", ".join(known) or "none"
                raise InvalidRequest(f"{self.name} has no filter {quoted(key)}: it has {names}")
            choices = [choice for choice, _ in known[key].choices]
            if choices and value not in choices:
                raise InvalidRequest(
                    f"{key} {quoted(value)} is unknown: one of {', '.join(filter(None, choices))}"
                )
            wanted[key] = value
        sort = asked.sort or self.sort
        return self.read(hub, caller, Asked(sort, asked.after, asked.limit), wanted)

    def many(self, hub: Hub, caller: Caller, asked: Asked, given: Mapping[str, str]) -> Page[Any]:
        """As page(), but up to MOST_EXPORTED rows."""
        items: list[Any] = []
        after = asked.after
        while len(items) < MOST_EXPORTED:
            page = self.page(hub, caller, Asked(asked.sort, after, _AT_ONCE), given)
            items += page.items
            after = page.after
            if after is None:
                break
        return Page(items, after)

    def plain(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows as plain JSON."""
        return [{each.key: _plain(getattr(row, each.key)) for each in self.columns} for row in rows]

    def csv(self, rows: Sequence[Any]) -> str:
        """The rows as CSV, in which no spreadsheet finds a formula."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([each.key for each in self.columns])
        for row in rows:
            writer.writerow([_cell(_plain(getattr(row, each.key))) for each in self.columns])
        return text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _cell(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    elif isinstance(value, dict):
        value = ", ".join(f"{name}: {each}" for name, each in value.items())
    text = str(value).replace("\0", "")
    # A quotation mark before it makes it text; spaces before a formula do not.
    return f"'{text}" if text.lstrip().startswith(_FORMULA) or text.startswith(_FORMULA) else text
