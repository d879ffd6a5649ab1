"""Files as text: whether they are, and how much of them a page shows."""

import json
from dataclasses import dataclass
from typing import Final

from deltahub.codecs.files.json_bounds import json_fault
from deltahub.registry.cards.plain_values import valid_text

MAX_BYTES: Final = 256 << 10
_MAX_LINES: Final = 5000
_MAX_LINE: Final = 2000
_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 20_000
_MAX_DIGITS: Final = 100
# How the names of images end that every browser shows. SVG is text here: it may hold scripts.
IMAGES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".bmp", ".ico")
MAX_IMAGE_BYTES: Final = 20 << 20


@dataclass(frozen=True)
class ShownText:
    """The lines of a text. is_cut: the file goes on. is_formatted: JSON with spaces of ours."""

    lines: list[str]
    is_cut: bool
    is_formatted: bool = False


def decoded(data: bytes, *, is_whole: bool) -> str | None:
    """Return the text of a file's first bytes; None if it is no text in UTF-8."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The end of the part may lie in the middle of a letter.
        is_end = not is_whole and error.start >= len(data) - 3
        return data[: error.start].decode("utf-8-sig", "replace") if is_end else None


def shown(data: bytes, *, is_whole: bool, is_json: bool) -> ShownText | None:
    """Return what a page shows of a text file; None if it is none."""
    text = decoded(data, is_whole=is_whole)
    if text is None:
        return None
    pretty = _pretty(text) if is_json and is_whole else None
    lines = (text if pretty is None else pretty).splitlines()
    is_cut = not is_whole or len(lines) > _MAX_LINES
    return ShownText([_cut(line) for line in lines[:_MAX_LINES]], is_cut, pretty is not None)


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ..."


def _pretty(text: str) -> str | None:
    """JSON with a line for each value; None for what is no JSON, or has lines already."""
    if text.count("\n") > 2 or json_fault(text.encode(), _MAX_DEPTH, _MAX_VALUES, _MAX_VALUES):
        return None
    try:
        # Long numbers become text: int() takes quadratic time for them.
        value = json.loads(text, parse_int=_integer)
        found = json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return valid_text(found) if len(found) <= 4 * MAX_BYTES else None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits
