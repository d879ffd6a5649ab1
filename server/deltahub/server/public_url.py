"""The public address of a hub behind a proxy. Links that the hub sends begin with it."""

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send


def checked_public_url(url: str) -> str:
    """Return the URL without a final slash. ValueError unless it is http(s)://host[:port]."""
    parts = urlsplit(url)
    is_plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    # parts.port raises ValueError for a port that is no number or above 65535.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url[:200]!r} is no address of a hub: write https://hub.example.com")
    if not is_plain or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError(f"{url[:200]!r}: a hub has a host of its own, with nothing behind it")
    return f"{parts.scheme}://{parts.netloc.lower()}"


class PublicUrl:
    """Middleware that sets scheme and Host of every request to those of the public address."""

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._host = parts.netloc.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            others = [(key, value) for key, value in scope["headers"] if key != b"host"]
            headers = [(b"host", self._host), *others]
            scope = {**scope, "scheme": self._scheme, "headers": headers}
        await self._app(scope, receive, send)
