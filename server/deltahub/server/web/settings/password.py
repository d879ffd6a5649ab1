"""The viewer's password."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.login import passwords
from deltahub.registry.errors import Forbidden, InvalidRequest
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep
from deltahub.server.web.account.turns import LoginsDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.settings.parts import ViewerDep, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings/password")


@router.get("")
def show_password(request: Request, hub: HubDep, viewer: ViewerDep) -> Response:
    """Show the form."""
    return _page(request, hub, viewer)


@router.post("")
async def change_password(
    request: Request, hub: HubDep, viewer: ViewerDep, logins: LoginsDep, form: FormDep
) -> Response:
    """Change the password."""
    old, new = form.get("old", ""), form.get("new", "")

    def change() -> Response:
        try:
            passwords.change_own(hub.registry, viewer, old, new)
        except (InvalidRequest, Forbidden) as error:
            return _page(request, hub, viewer, error)
        return _page(request, hub, viewer, done="Your password is set. Your other sessions ended.")

    return await logins.check(request, change)


def _page(
    request: Request,
    hub: Hub,
    viewer: Caller,
    error: InvalidRequest | Forbidden | None = None,
    done: str | None = None,
) -> Response:
    return page(
        request, hub, viewer, "password", error, done=done,
        has_password=passwords.has_password(hub.registry, viewer),
        least=passwords.MIN_LENGTH,
    )  # fmt: skip
