"""Parsing of If-None-Match, If-Range, Range and Content-Range (RFC 9110), one range only."""

import re
from dataclasses import dataclass

_SINGLE_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)


class UnsatisfiableRange(Exception):
    """A range that begins after the end of the file."""

    code = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes; the range asked for lies outside of it")
        self.size = size


@dataclass(frozen=True)
class Part:
    """Bytes [start, end) of a file."""

    start: int
    end: int


def matches(header: str, etag: str) -> bool:
    """Whether an If-None-Match header contains `etag` (with quotes), by weak comparison."""
    if header.strip() == "*":
        return True
    tags = (tag.strip().removeprefix("W/") for tag in header.split(","))
    return etag in tags


def requested_part(
    range_header: str | None, if_range: str | None, etag: str, size: int
) -> Part | None:
    """Return the one range that a request asks for; None for the whole file.

    Several ranges, other units and malformed headers are ignored, as RFC 9110 allows. If-Range is
    compared strongly with `etag`; a date never matches. Raises UnsatisfiableRange.
    """
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return None
    match = _SINGLE_RANGE.fullmatch(range_header.strip())
    if match is None:
        return None
    first, last = match.groups()
    if first == "":
        if last == "":
            return None
        if int(last) == 0 or size == 0:
            raise UnsatisfiableRange(size)
        return Part(max(0, size - int(last)), size)
    start = int(first)
    if last != "" and int(last) < start:
        return None
    if start >= size:
        raise UnsatisfiableRange(size)
    return Part(start, size if last == "" else min(int(last) + 1, size))


def parse_content_range(header: str) -> tuple[int, int, int] | None:
    """Return (first byte, byte after the last, file size) of a Content-Range; None if malformed."""
    match = _CONTENT_RANGE.fullmatch(header.strip())
    if match is None:
        return None
    first, last, total = (int(group) for group in match.groups())
    if not first <= last < total:
        return None
    return first, last + 1, total
