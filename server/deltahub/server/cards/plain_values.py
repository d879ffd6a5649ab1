"""What users' files say, as values that every JSON reader takes."""

import json
from collections.abc import Mapping
from typing import Any, Final

DEEPEST: Final = 64  # levels of lists and mappings within each other
# Integers that fit 64 bits, with sign or without; longer ones are shown as text.
_LEAST_INT: Final = -(1 << 63)
_MOST_INT: Final = (1 << 64) - 1
_LONGEST_INT: Final = 20


def plain(value: Any, deepest: int = DEEPEST) -> Any:
    """The value with nothing in it that JSON lacks or readers stumble over.

    Pairs of surrogates are joined, lone ones become U+FFFD; NaN and the infinities are None,
    integers beyond 64 bits are text. ValueError for what is nested deeper than `deepest`.
    """
    if isinstance(value, str):
        return joined(value)
    if isinstance(value, Mapping | list | tuple) and deepest == 0:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {joined(str(key)): plain(one, deepest - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, deepest - 1) for one in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if _LEAST_INT <= value <= _MOST_INT else str(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return joined(str(value))


def joined(value: str) -> str:
    """The text with a form in UTF-8: pairs of surrogates joined, lone ones replaced."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def read_json(data: bytes) -> Any:
    """What JSON in a user's file says, as `plain` gives it. ValueError for what is no JSON."""
    try:
        return plain(json.loads(data, parse_int=_integer))
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from error


def _integer(digits: str) -> int | str:
    # Python takes long for many digits, and refuses more than some thousands.
    return int(digits) if len(digits) <= _LONGEST_INT else digits
