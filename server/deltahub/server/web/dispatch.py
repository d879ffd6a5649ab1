"""Which requests are for pages, and which for the APIs that share the same addresses."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from deltahub.registry.errors import InvalidName
from deltahub.registry.names import RESERVED_NAMESPACES, validate_name
from deltahub.server.browser_sessions import CHECKS_FORMS
from deltahub.server.connections.exchanges import DOOR_KEY
from deltahub.server.connections.inner_paths import inner_path

# All pages that belong to no model. No namespace has this name.
PREFIX: Final = "-"
# What follows a model's name in the address of one of its pages.
MODEL_PAGES: Final = frozenset(
    "tree blob commits commit refs lineage use tensors compare adapter settings".split()
)
# Addresses that Hugging Face clients print for people, and our pages of the same.
ELSEWHERE: Final = {
    "/login": "/-/login",
    "/join": "/-/login",
    "/logout": "/-/login",
    "/new": "/-/new",
    "/models": "/",
    "/settings": "/-/settings",
    "/settings/tokens": "/-/settings/tokens",
    "/settings/organizations": "/-/settings/organizations",
}


class WebDispatch:
    """Middleware: sends requests for pages to `web`, others to `app`."""

    def __init__(self, app: ASGIApp, web: ASGIApp) -> None:
        self._app = app
        self._web = web

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state[DOOR_KEY] = "web"
        state[CHECKS_FORMS] = True
        # A branch may have slashes in its name, which addresses write as %2F.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        await self._web({**scope, "path": inner_path(raw)}, receive, send)


def is_page(path: str) -> bool:
    """Whether a path is that of a page. Precondition: it begins with a slash."""
    if path == "/" or path in ELSEWHERE:
        return True
    parts = path.split("/")[1:]
    if parts[0] == PREFIX:
        return True
    if parts[0] in RESERVED_NAMESPACES or not _is_name(parts[0]):
        return False
    if len(parts) <= 2:
        # Git asks for NAME.git/info/refs and so on, which has more parts.
        return True
    return parts[2] in MODEL_PAGES


def _is_name(text: str) -> bool:
    """Whether a namespace may have this name: not .well-known, for one."""
    try:
        validate_name(text, "namespace")
    except InvalidName:
        return False
    return True
