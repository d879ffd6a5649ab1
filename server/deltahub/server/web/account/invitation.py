"""A link by which somebody sets a password, once, and is logged in."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.login import invitations, passwords
from deltahub.registry.errors import InvalidRequest
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.web.account.login import begun
from deltahub.server.web.account.turns import LoginsDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/invitation")


@router.get("/{secret}")
def show_invitation(request: Request, secret: str, hub: HubDep, viewer: CallerDep) -> Response:
    """Show the form. Nothing changes, as mail programs look at links before people do."""
    name = invitations.invited_user(hub.registry, secret)
    return render(
        request, hub, viewer, "account/invitation.html",
        name=name, problem=None, least=passwords.MIN_LENGTH,
    )  # fmt: skip


@router.post("/{secret}")
async def accept_invitation(
    request: Request, secret: str, hub: HubDep, viewer: CallerDep, logins: LoginsDep, form: FormDep
) -> Response:
    """Set the password and log in."""

    def accept() -> Response:
        name = invitations.invited_user(hub.registry, secret)
        try:
            user_id = invitations.accept(hub.registry, secret, form.get("password", ""))
        except InvalidRequest as error:
            return render(
                request, hub, viewer, "account/invitation.html", 422,
                name=name, problem=str(error), least=passwords.MIN_LENGTH,
            )  # fmt: skip
        return begun(request, hub, user_id, "invitation", "/")

    return await logins.check(request, accept)
