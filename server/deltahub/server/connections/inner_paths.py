"""Paths of requests with the slashes apart that a client has escaped: a branch may be `a/b`."""

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

# Replaces %2F inside a part of a path until unescaped() reads the part; no name contains it.
SLASH: Final = "\0"
_SLASHES: Final = re.compile(rb"/{2,}")
# A full reference whose slashes a client did not escape, after the repository and a verb.
_REFERENCE: Final = re.compile(
    r"^((?:/api/models)?/[^/]+/[^/]+/[a-z-]+)/refs/(heads|tags)/([^/]+)(?=/|$)"
)


def inner_path(raw_path: bytes) -> str:
    """Return the decoded path, with SLASH for every escaped slash, which is no separator."""
    text = raw_path.decode("latin-1").partition("?")[0]
    inner = unquote(text.replace("%2F", SLASH).replace("%2f", SLASH))
    return _REFERENCE.sub(rf"\1/refs{SLASH}\2{SLASH}\3", inner)


def unescaped(part: str) -> str:
    """Return a part of an inner path with its escaped slashes as slashes."""
    return part.replace(SLASH, "/")


class TidyPaths:
    """Middleware that takes double and trailing slashes out of paths, except those of /v1.

    Clients join the address that a user typed, which may end with a slash, and a path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/v1/"):
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            tidy = _SLASHES.sub(b"/", raw)
            tidy = tidy.rstrip(b"/") or b"/"
            if tidy != raw:
                path = unquote(tidy.decode("latin-1"))
                scope = {**scope, "path": path, "raw_path": tidy}
        await self._app(scope, receive, send)
