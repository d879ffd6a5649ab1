"""Logging in and out."""

from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access import tokens
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.login import passwords, sessions
from deltahub.registry.errors import Busy, RegistryError, Unauthorized
from deltahub.server import browser_sessions
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF, public_text, wire_code
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.web.account.turns import LoginsDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-")

_LONGEST_PATH: Final = 2000


@router.get("/login")
def show_login(
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    next_path: Annotated[str, Query(alias="next")] = "/",
) -> Response:
    """Show how to log in."""
    next_path = local_path(next_path)
    if viewer is not None:
        return RedirectResponse(next_path, 303)
    return login_page(request, hub, next_path)


@router.post("/login/password")
async def log_in_by_password(
    request: Request, hub: HubDep, logins: LoginsDep, form: FormDep
) -> Response:
    """Begin a session for the holder of a password."""
    next_path, name = local_path(form.get("next", "/")), form.get("name", "")
    password = form.get("password", "")
    try:
        user_id = await logins.check_evenly(
            request, lambda: passwords.log_in(hub.registry, name, password)
        )
        return await anyio.to_thread.run_sync(
            lambda: begun(request, hub, user_id, "password", next_path)
        )
    except (Unauthorized, Busy) as error:
        return login_page(request, hub, next_path, error, by="password", name=name)


@router.post("/login/token")
def log_in_by_token(request: Request, hub: HubDep, form: FormDep) -> Response:
    """Begin a session for the holder of a token."""
    next_path = local_path(form.get("next", "/"))
    try:
        caller = tokens.authenticate(hub.registry, form.get("token", ""))
        return begun(request, hub, caller.user_id, "token", next_path, caller.token_mark)
    except Unauthorized as error:
        return login_page(request, hub, next_path, error, by="token")


@router.post("/logout")
def log_out(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """End this browser's session."""
    answer = RedirectResponse("/", 303)
    end_session_of(hub, viewer)
    browser_sessions.forget_cookie(answer, request)
    return answer


def login_page(
    request: Request,
    hub: Hub,
    next_path: str,
    error: RegistryError | None = None,
    *,
    by: str = "",
    name: str = "",
) -> Response:
    """Make the page, perhaps with what went wrong. by: the way that was tried."""
    status = 200 if error is None else STATUS_OF[wire_code(error.code)]
    return render(
        request, hub, None, "account/login.html", status,
        next=next_path, problem=None if error is None else public_text(error),
        by=by, name=name[:100],
        provider=hub.settings.oidc_name if hub.settings.oidc_issuer else None,
    )  # fmt: skip


def begun(
    request: Request,
    hub: Hub,
    user_id: int,
    how: str,
    next_path: str,
    token_mark: str | None = None,
) -> Response:
    """Begin a session: always a new one, whatever cookie the browser had before.

    token_mark: of the token that proved who it is. The session before, if there was one, ends.
    """
    agent = request.headers.get("user-agent", "")
    address = "" if request.client is None else request.client.host
    secret, life = sessions.begin_session(
        hub.registry, user_id, agent=agent, address=address, how=how, token_mark=token_mark
    )
    end_session_of(hub, getattr(request.state, "caller", None))
    answer = RedirectResponse(next_path, 303)
    browser_sessions.set_cookie(answer, request, hub.signer, secret, life)
    return answer


def end_session_of(hub: Hub, viewer: Caller | None) -> None:
    """End the session that a request came with, if it came with one."""
    session_id = None if viewer is None else sessions.session_id_of(viewer)
    if viewer is not None and session_id is not None:
        sessions.end_session(hub.registry, viewer, session_id)


def local_path(path: str) -> str:
    """Return a path of this hub; the first page for an address that leads elsewhere.

    Browsers leave tabs and line breaks out of addresses, and take a backslash for a slash, so that
    `/\\t/evil.example` would lead to another host.
    """
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    plain = unquote(path)
    leads_away = bool(parts.scheme or parts.netloc) or not path.startswith("/")
    # Also as a proxy might read it that decodes the path.
    leads_away = leads_away or plain.startswith("//") or "\\" in plain.partition("?")[0]
    if leads_away or len(path) > _LONGEST_PATH or not plain.isprintable():
        return "/"
    return path
