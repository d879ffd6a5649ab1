"""Sends requests of Hugging Face clients to their application, and decodes their paths."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.server.connections.exchanges import DOOR_KEY
from deltahub.server.connections.inner_paths import inner_path

# First parts of paths of that API; no namespace may have these names.
FIRST_PARTS: Final = frozenset({"api", "cas", "lfs", "datasets", "spaces", "oauth", "v2"})
# What git asks for below a model, and people on a model that is gated elsewhere.
_REFUSED: Final = (["info", "refs"], ["git-upload-pack"], ["git-receive-pack"], ["ask-access"])
# Parts that follow a model's name in addresses of files.
_FILE_PARTS: Final = frozenset({"raw", "resolve"})


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
    if parts[2:] in _REFUSED or (parts[0] == "buckets" and parts[3:4] == ["resolve"]):
        return True
    is_lfs = parts[-4:-1] == ["info", "lfs", "objects"] or "info/lfs/" in path
    return is_lfs or (len(parts) > 2 and not _FILE_PARTS.isdisjoint(parts[1:3]))


def door_of(path: str) -> str:
    """Return which of the APIs of Hugging Face clients a path belongs to: cas, lfs or hf."""
    if path.startswith("/cas/"):
        return "cas"
    return "lfs" if path.startswith("/lfs/") or "/info/lfs/" in path else "hf"
