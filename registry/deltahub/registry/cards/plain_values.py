"""Contents of users' files, reduced to values that every JSON reader accepts."""

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_NESTING: Final = 64  # levels of nested lists and mappings
# Integers that fit into 64 bits, signed or unsigned; other integers become text.
_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 64) - 1
_MAX_INT_CHARS: Final = 20  # characters


def plain(value: Any, max_nesting: int = MAX_NESTING) -> Any:
    """Return the value reduced to values that JSON has and readers accept.

    Surrogate pairs become one character, lone surrogates U+FFFD, NaN and infinities None, integers
    beyond 64 bits text. Raises ValueError if lists or mappings nest deeper than `max_nesting`.
    """
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping | list | tuple) and max_nesting == 0:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels")
    if isinstance(value, Mapping):
        return {valid_text(str(key)): plain(item, max_nesting - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, max_nesting - 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if _MIN_INT <= value <= _MAX_INT else str(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return valid_text(str(value))


def valid_text(value: str) -> str:
    """Return text that UTF-8 can encode: surrogate pairs joined, lone surrogates as U+FFFD."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def read_json(data: bytes) -> Any:
    """Parse the JSON of a user's file and reduce it with `plain`. Raises ValueError."""
    try:
        return plain(json.loads(data, parse_int=_integer))
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels") from error


def _integer(digits: str) -> int | str:
    # int() takes quadratic time for long text, and refuses more than a few thousand digits.
    return int(digits) if len(digits) <= _MAX_INT_CHARS else digits
