"""Sessions of browsers: a cookie says who asks, and a token in the page that the page asks.

A browser sends the cookie along with requests that other sites make, so that a request that changes
something must also have the token, which only pages of this hub know.
"""

import secrets
from datetime import timedelta
from typing import Final

import anyio.to_thread
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.access.login.sessions import session_caller
from deltahub.registry.errors import Forbidden, Unauthorized
from deltahub.registry.registry import Registry
from deltahub.server.public_url import prefix_of
from deltahub.server.signing import Signer

COOKIE: Final = "deltahub_session"
# Browsers take a cookie with this prefix only over HTTPS and from the host itself, so that no page
# of a neighbouring host name can put its own session there.
_HOST_PREFIX: Final = "__Host-"
_SECURE_PREFIX: Final = "__Secure-"
CSRF_HEADER: Final = "X-CSRF-Token"
CSRF_FIELD: Final = "csrf"
# Attribute of a request's state: its route reads the token from the body of a form.
CHECKS_FORMS: Final = "checks_forms"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Forms that were open for longer are sent again.
_CSRF_S: Final = 24 * 3600.0
_COOKIE_PURPOSE: Final = "session cookie"
_CSRF_PURPOSE: Final = "csrf"
_NOT_OURS: Final = (
    "this request did not come from a page of this hub, or the page is a day old: load the page"
    " again and repeat it"
)


def cookie_name(connection: HTTPConnection, name: str = COOKIE) -> str:
    """Return what a cookie of the hub is called on this connection."""
    if connection.url.scheme != "https":
        return name
    # Browsers refuse the former where the cookie is for a path of its host alone.
    return (_SECURE_PREFIX if prefix_of(connection) else _HOST_PREFIX) + name


async def of_browser(request: Request, reg: Registry, signer: Signer) -> Caller | None:
    """Return the caller whose session the browser's cookie names. Raises Forbidden."""
    secret = secret_of(request, signer)
    if secret is None:
        return ANONYMOUS
    # Only requests with a cookie use a thread: the switch costs more than reading the headers.
    caller = await anyio.to_thread.run_sync(session_caller, reg, secret)
    checks_itself = getattr(request.state, CHECKS_FORMS, False)
    if caller is not None and request.method not in SAFE_METHODS and not checks_itself:
        check_csrf(signer, caller, request.headers.get(CSRF_HEADER))
    return caller


def secret_of(connection: HTTPConnection, signer: Signer) -> str | None:
    """Return the secret in the session's cookie; None without one that this hub signed."""
    cookie = connection.cookies.get(cookie_name(connection))
    if not cookie:
        return None
    try:
        return str(signer.verify(_COOKIE_PURPOSE, cookie)["secret"])
    except (Unauthorized, KeyError, ValueError):
        return None


def set_cookie(
    response: Response, connection: HTTPConnection, signer: Signer, secret: str, life: timedelta
) -> None:
    """Give the browser the secret of a new session."""
    seconds = life.total_seconds()
    response.set_cookie(
        cookie_name(connection), signer.sign(_COOKIE_PURPOSE, {"secret": secret}, seconds),
        max_age=int(seconds),
        path="/", secure=connection.url.scheme == "https", httponly=True, samesite="lax",
    )  # fmt: skip


def forget_cookie(response: Response, connection: HTTPConnection) -> None:
    """Tell the browser to forget its session."""
    response.delete_cookie(
        cookie_name(connection), path="/", secure=connection.url.scheme == "https",
        httponly=True, samesite="lax",
    )  # fmt: skip


def csrf_token(signer: Signer, caller: Caller | None) -> str:
    """Return what a form of this caller has to send along. It differs each time.

    A text that is the same in every compressed page could be found out by the pages' lengths.
    """
    claims = {"session": _mark(caller), "once": secrets.token_hex(8)}
    return signer.sign(_CSRF_PURPOSE, claims, _CSRF_S)


def check_csrf(signer: Signer, caller: Caller | None, token: str | None) -> None:
    """Raise Forbidden unless csrf_token() made the token for this caller."""
    try:
        claims = signer.verify(_CSRF_PURPOSE, token or "")
    except (Unauthorized, ValueError) as error:
        raise Forbidden(_NOT_OURS) from error
    if claims.get("session") != _mark(caller):
        raise Forbidden(_NOT_OURS)


def check_origin(connection: HTTPConnection) -> None:
    """Raise Forbidden if a page of another site sent the request, as far as the browser says."""
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        is_ours = site in ("same-origin", "none")
    else:
        origin = connection.headers.get("origin")
        is_ours = origin is None or origin == f"{connection.url.scheme}://{connection.url.netloc}"
    if not is_ours:
        raise Forbidden(_NOT_OURS)


def _mark(caller: Caller | None) -> str:
    return "" if caller is None else caller.token_mark
