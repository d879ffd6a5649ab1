"""Who the hub takes the viewer for, and which accounts elsewhere log them in."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access import accounts, organizations
from deltahub.registry.access.login import identities
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.settings.parts import ViewerDep, back_to, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings")


@router.get("")
def show_profile(request: Request, hub: HubDep, viewer: ViewerDep) -> Response:
    """Show the viewer's account."""
    return page(
        request, hub, viewer, "profile",
        profile=accounts.profile_of(hub.registry, viewer),
        namespaces=organizations.namespaces_of(hub.registry, viewer),
        identities=identities.list_own(hub.registry, viewer),
        provider=hub.settings.oidc_name if hub.settings.oidc_issuer else None,
    )  # fmt: skip


@router.post("/disconnect")
def disconnect_identity(hub: HubDep, viewer: ViewerDep, form: FormDep) -> Response:
    """Let an account elsewhere log the viewer in no more."""
    issuer, subject = form.get("issuer", ""), form.get("subject", "")
    identities.disconnect(hub.registry, viewer, issuer, subject)
    return back_to("/-/settings")
