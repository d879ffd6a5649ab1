"""The public address of a hub behind a proxy, with which links begin, and that for S3 clients."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltahub.server.connections.exchanges import DOOR_KEY

# Where a request's scope has the path that all addresses of the hub begin with.
_PREFIX: Final = "deltahub.prefix"
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
# Addresses on the hub in the headers of answers: the path of a redirect, of a link, of a cookie.
_ADDRESSES: Final = {
    b"location": re.compile(rb"^(?=/(?!/))"),
    b"link": re.compile(rb"(?<=<)(?=/(?!/))"),
    b"set-cookie": re.compile(rb"(?i)(?<=; path=)/(?=;|$)"),
}
# Pages of FastAPI, which take the prefix from here.
_OF_FASTAPI: Final = ("/docs", "/openapi.json")
_DEFAULT_PORTS: Final = (":80", ":443")


def checked_public_url(url: str) -> str:
    """Return the URL without a final slash. ValueError unless it is http(s)://host[:port][/path]."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    # parts.port raises ValueError for a port that is no number or above 65535.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url[:200]!r} is no address of a hub: write https://hub.example.com")
    is_plain = _PATH.fullmatch(path) and not (parts.query or parts.fragment or parts.username)
    if not is_plain or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError(
            f"{url[:200]!r} is no address of a hub: write https://example.com/hub, with letters,"
            " digits and ._~- in its path, and nothing behind it"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def prefix_of(connection: HTTPConnection) -> str:
    """Return the path of the public address, without a final slash; empty without one."""
    return str(connection.scope.get(_PREFIX, ""))


def origin_of(connection: HTTPConnection) -> str:
    """Return what the absolute addresses of the hub begin with, without a final slash."""
    return str(connection.base_url).rstrip("/") + prefix_of(connection)


class PublicUrl:
    """Middleware that sets scheme and Host of every request to those of the public address.

    If that has a path, the path is taken from the beginning of requests, and put before all
    addresses on the hub in the headers of answers.
    """

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._host = parts.netloc.encode("ascii")
        self._prefix = parts.path
        # FastAPI's own redirects, to paths without a slash at their end, are whole addresses.
        own = re.escape(f"{parts.scheme}://{parts.netloc}".encode("ascii"))
        self._of_fastapi = re.compile(rb"(?<=^%s)(?=/v1/)" % own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        others = [(key, value) for key, value in scope["headers"] if key != b"host"]
        headers = [(b"host", self._host), *others]
        scope = {**scope, "scheme": self._scheme, "headers": headers}
        if not self._prefix:
            await self._app(scope, receive, send)
            return
        self._take_prefix(scope)

        async def prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = [(key, self._prefixed(key, value)) for key, value in message["headers"]]
                message = {**message, "headers": sent}
            await send(message)

        await self._app(scope, receive, prefixed)

    def _take_prefix(self, scope: Scope) -> None:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        prefix = self._prefix.encode()
        if raw == prefix or raw.startswith(prefix + b"/"):
            raw = raw[len(prefix) :] or b"/"
        scope[_PREFIX] = self._prefix
        scope["raw_path"] = raw
        scope["path"] = unquote(raw.decode("latin-1"))
        if scope["path"].startswith("/v1/"):
            scope.setdefault("state", {})[DOOR_KEY] = "v1"
        if scope["path"].startswith(_OF_FASTAPI):
            scope["root_path"] = self._prefix

    def _prefixed(self, key: bytes, value: bytes) -> bytes:
        address = _ADDRESSES.get(key.lower())
        if address is None:
            return value
        if key.lower() == b"location" and value.startswith(b"http"):
            address = self._of_fastapi
        return address.sub(self._prefix.encode(), value)


@dataclass
class S3Door:
    """Where S3 clients reach this server. port: None until it listens, and without one.

    url: of the settings.
    """

    url: str | None
    port: int | None = None

    @property
    def is_open(self) -> bool:
        return self.url is not None or self.port is not None

    def has(self, scope: Scope) -> bool:
        """Whether a request of HTTP is for this door."""
        if self.port is not None and scope.get("server") and scope["server"][1] == self.port:
            return True
        if self.url is None:
            return False
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return _plain(host.decode("latin-1")) == _plain(urlsplit(self.url).netloc)

    def url_for(self, hub_url: str) -> str | None:
        """Return the address for clients that reach the hub at hub_url; None if none is open."""
        if self.url is not None or self.port is None:
            return self.url
        parts = urlsplit(hub_url)
        name = parts.hostname or "127.0.0.1"
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"


def _plain(host: str) -> str:
    host = host.strip().lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return host
