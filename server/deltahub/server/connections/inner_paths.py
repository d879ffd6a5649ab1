"""Paths of requests with the slashes apart that a client has escaped: a branch may be `a/b`."""

from typing import Final
from urllib.parse import unquote

# Replaces %2F inside a part of a path until unescaped() reads the part; no name contains it.
SLASH: Final = "\0"


def inner_path(raw_path: bytes) -> str:
    """Return the decoded path, with SLASH for every escaped slash, which is no separator."""
    text = raw_path.decode("latin-1").partition("?")[0]
    return unquote(text.replace("%2F", SLASH).replace("%2f", SLASH))


def unescaped(part: str) -> str:
    """Return a part of an inner path with its escaped slashes as slashes."""
    return part.replace(SLASH, "/")
