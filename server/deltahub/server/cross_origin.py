"""Which pages of other sites may call the hub from a browser (CORS).

They send a token in a header. Cookies are never taken from them, so that no other page acts as the
person who has logged in here.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_ANY: Final = "*"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
# Headers of answers that clients read, beside those that browsers always show.
_EXPOSED: Final = (
    "Accept-Ranges", "Content-Disposition", "Content-Range", "ETag", "Link", "Retry-After",
    "X-Error-Code", "X-Error-Message", "X-Linked-ETag", "X-Linked-Size", "X-Repo-Commit",
    "X-Request-Id", "X-Total-Count", "X-Xet-Access-Token", "X-Xet-Cas-Url", "X-Xet-Hash",
    "X-Xet-Refresh-Route", "X-Xet-Token-Expiration", "Upload-Offset", "Upload-Complete",
)  # fmt: skip
_PREFLIGHT_S: Final = 600


def origins_in(text: str) -> tuple[str, ...]:
    """Return origins that are separated by commas. Raises ValueError for a malformed one."""
    origins = tuple(origin for origin in map(str.strip, text.split(",")) if origin)
    for origin in origins:
        parts = urlsplit(origin)
        is_origin = parts.scheme and parts.hostname and origin == f"{parts.scheme}://{parts.netloc}"
        if origin != _ANY and (not is_origin or "@" in origin or origin != origin.lower()):
            raise ValueError(
                f"{origin[:200]!r} is no origin: write https://app.example.com, in small letters,"
                " without a path and a slash at the end"
            )
    return origins


def open_to(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Wrap an application, so that browsers let pages of these origins call it."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=_METHODS,
        # A browser names the headers that it wants to send, and each is allowed.
        allow_headers=("*",),
        expose_headers=_EXPOSED,
        max_age=_PREFLIGHT_S,
    )
