"""Which requests are of Hugging Face clients, and their paths as those clients mean them."""

from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.registry.names import RESERVED_NAMESPACES

# First parts of paths that no namespace can be called.
FIRST_PARTS: Final = frozenset({"api", "cas", "lfs", "datasets", "spaces", "oauth"})
# What a web address of a model has after its name; clients print such links for people.
PAGES: Final = frozenset({"raw", "blob", "tree", "commit", "commits"})
_FILE_PARTS: Final = PAGES | {"resolve"}
# Stands for a %2F within a part of a path until the part is read: no name holds it.
SLASH: Final = "\0"


class HuggingFaceDoor:
    """Sends requests of Hugging Face clients to `hugging_face`, all others to `app`."""

    def __init__(self, app: ASGIApp, hugging_face: ASGIApp) -> None:
        self._app = app
        self._hugging_face = hugging_face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_hugging_face(scope["path"]):
            await self._app(scope, receive, send)
            return
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        await self._hugging_face({**scope, "path": inner_path(raw)}, receive, send)


def is_hugging_face(path: str) -> bool:
    """Whether a path is of that API. Precondition: it begins with a slash."""
    parts = path.split("/")[1:]
    if parts[0] in FIRST_PARTS:
        return True
    if parts[0] == "v1":
        return False
    if len(parts) == 2 and parts[1] and parts[0] not in RESERVED_NAMESPACES:
        return True  # a model's own page
    is_lfs = parts[-4:-1] == ["info", "lfs", "objects"] or "info/lfs/" in path
    return is_lfs or (len(parts) > 2 and not _FILE_PARTS.isdisjoint(parts[1:3]))


def inner_path(raw_path: bytes) -> str:
    """A path decoded, in which a slash that a client has escaped is no separator yet."""
    text = raw_path.decode("latin-1").partition("?")[0]
    return unquote(text.replace("%2F", SLASH).replace("%2f", SLASH))


def unescaped(part: str) -> str:
    """What a part of an inner path names."""
    return part.replace(SLASH, "/")
