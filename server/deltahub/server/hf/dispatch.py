"""Sends requests of Hugging Face clients to their application, and decodes their paths."""

from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.registry.names import RESERVED_NAMESPACES
from deltahub.server.connections.exchanges import DOOR_KEY

# First parts of paths of that API; no namespace may have these names.
FIRST_PARTS: Final = frozenset({"api", "cas", "lfs", "datasets", "spaces", "oauth"})
# Parts that follow a model's name in links to web pages, which clients print for people.
PAGES: Final = frozenset({"raw", "blob", "tree", "commit", "commits"})
_FILE_PARTS: Final = PAGES | {"resolve"}
# Replaces %2F inside a part of a path until unescaped() reads the part; no name contains it.
SLASH: Final = "\0"


class HuggingFaceDispatch:
    """Middleware: sends requests of Hugging Face clients to `hugging_face`, others to `app`."""

    def __init__(self, app: ASGIApp, hugging_face: ASGIApp) -> None:
        self._app = app
        self._hugging_face = hugging_face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_hugging_face(scope["path"]):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[DOOR_KEY] = door_of(scope["path"])
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        await self._hugging_face({**scope, "path": inner_path(raw)}, receive, send)


def is_hugging_face(path: str) -> bool:
    """Whether a path belongs to the Hugging Face API. Precondition: it begins with a slash."""
    parts = path.split("/")[1:]
    if parts[0] in FIRST_PARTS:
        return True
    if parts[0] == "v1":
        return False
    if len(parts) == 2 and parts[1] and parts[0] not in RESERVED_NAMESPACES:
        return True  # the web page of a model
    is_lfs = parts[-4:-1] == ["info", "lfs", "objects"] or "info/lfs/" in path
    return is_lfs or (len(parts) > 2 and not _FILE_PARTS.isdisjoint(parts[1:3]))


def door_of(path: str) -> str:
    """Return which of the APIs of Hugging Face clients a path belongs to: cas, lfs or hf."""
    if path.startswith("/cas/"):
        return "cas"
    return "lfs" if path.startswith("/lfs/") or "/info/lfs/" in path else "hf"


def inner_path(raw_path: bytes) -> str:
    """Return the decoded path, with SLASH for every escaped slash, which is no separator."""
    text = raw_path.decode("latin-1").partition("?")[0]
    return unquote(text.replace("%2F", SLASH).replace("%2f", SLASH))


def unescaped(part: str) -> str:
    """Return a part of an inner path with its escaped slashes as slashes."""
    return part.replace(SLASH, "/")
