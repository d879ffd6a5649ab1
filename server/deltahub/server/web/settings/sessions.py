"""The browsers in which the viewer is logged in."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.login import sessions
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.web.forms import FormDep, number_in
from deltahub.server.web.settings.parts import ViewerDep, back_to, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings/sessions")


@router.get("")
def show_sessions(request: Request, hub: HubDep, viewer: ViewerDep) -> Response:
    """Show the sessions, this one marked."""
    return page(
        request, hub, viewer, "sessions",
        sessions=sessions.list_sessions(hub.registry, viewer.user_id),
        own_id=sessions.session_id_of(viewer),
    )  # fmt: skip


@router.post("/end")
def end_session(hub: HubDep, viewer: ViewerDep, form: FormDep) -> Response:
    """End one session, perhaps this one."""
    sessions.end_own(hub.registry, viewer, number_in(form, "id"))
    return back_to("/-/settings/sessions")


@router.post("/end-others")
def end_other_sessions(hub: HubDep, viewer: ViewerDep) -> Response:
    """End all sessions but this one."""
    sessions.end_others(hub.registry, viewer)
    return back_to("/-/settings/sessions")
