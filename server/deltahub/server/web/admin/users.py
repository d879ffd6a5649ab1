"""What administrators do with users: make, invite, disable, and remove them."""

from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access import accounts
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.login import invitations
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.web.admin.viewer import AdminDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin/access/users")


@router.post("")
def create_user(request: Request, hub: HubDep, viewer: AdminDep, form: FormDep) -> Response:
    """Make a user, and show the link by which they set a password."""
    name = form.get("name", "")
    secret = accounts.create_invited(
        hub.registry, viewer, name, is_admin="is_admin" in form, by_shell=False
    )
    return _invitation(request, hub, viewer, name, secret)


@router.post("/{name}/invitation")
def invite_user(name: str, request: Request, hub: HubDep, viewer: AdminDep) -> Response:
    """Show a new link by which a user sets a password, also in place of a forgotten one."""
    secret = invitations.invite(hub.registry, viewer, name, by_shell=False)
    return _invitation(request, hub, viewer, name, secret)


@router.post("/{name}/disable")
def disable_user(name: str, hub: HubDep, viewer: AdminDep) -> Response:
    """End all access of a user at once."""
    accounts.disable(hub.registry, viewer, name, by_shell=False)
    return _back(name)


@router.post("/{name}/enable")
def enable_user(name: str, hub: HubDep, viewer: AdminDep) -> Response:
    """Let a disabled user in again."""
    accounts.enable(hub.registry, viewer, name, by_shell=False)
    return _back(name)


@router.post("/{name}/remove")
def remove_user(name: str, hub: HubDep, viewer: AdminDep) -> Response:
    """Remove a user who has no models."""
    accounts.remove(hub.registry, viewer, name, by_shell=False)
    return RedirectResponse("/-/admin/access/users", 303)


def _back(name: str) -> Response:
    return RedirectResponse(f"/-/admin/access/users?words={quote(name, safe='')}", 303)


def _invitation(request: Request, hub: Hub, viewer: Caller, name: str, secret: str) -> Response:
    link = origin_of(request) + invitations.PATH + secret
    return render(request, hub, viewer, "admin/invitation.html", name=name, link=link)
