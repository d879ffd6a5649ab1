"""Logging in and out."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access import tokens
from deltahub.registry.access.login import sessions
from deltahub.registry.errors import Unauthorized
from deltahub.server import browser_sessions
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-")


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
    return render(request, hub, viewer, "account/login.html", next=next_path, problem=None)


@router.post("/login/token")
def log_in_by_token(request: Request, hub: HubDep, viewer: CallerDep, form: FormDep) -> Response:
    """Begin a session for the holder of a token."""
    next_path = local_path(form.get("next", "/"))
    try:
        caller = tokens.authenticate(hub.registry, form.get("token", ""))
    except Unauthorized as error:
        return render(
            request, hub, viewer, "account/login.html", 401, next=next_path, problem=str(error)
        )
    return begun(request, hub, caller.user_id, "token", next_path)


@router.post("/logout")
def log_out(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """End this browser's session."""
    answer = RedirectResponse("/", 303)
    if viewer is not None:
        session_id = sessions.session_id_of(viewer)
        if session_id is not None:
            sessions.end_session(hub.registry, viewer, session_id)
    browser_sessions.forget_cookie(answer)
    return answer


def begun(request: Request, hub: Hub, user_id: int, how: str, next_path: str) -> Response:
    """Begin a session: always a new one, whatever cookie the browser had before."""
    agent = request.headers.get("user-agent", "")
    address = "" if request.client is None else request.client.host
    secret, life = sessions.begin_session(
        hub.registry, user_id, agent=agent, address=address, how=how
    )
    answer = RedirectResponse(next_path, 303)
    browser_sessions.set_cookie(answer, request, hub.signer, secret, life)
    return answer


def local_path(path: str) -> str:
    """Return a path of this hub; the first page for an address that leads elsewhere."""
    parts = urlsplit(path)
    is_local = path.startswith("/") and not parts.scheme and not parts.netloc
    if not is_local or path.startswith(("//", "/\\")) or any(char < " " for char in path):
        return "/"
    return path
