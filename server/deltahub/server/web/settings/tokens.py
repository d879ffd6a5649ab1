"""The viewer's access tokens."""

from typing import Final, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access import tokens
from deltahub.registry.access.caller import Caller, Scope
from deltahub.registry.errors import InvalidRequest, RegistryError
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep
from deltahub.server.web.forms import FormDep, number_in
from deltahub.server.web.settings.parts import ViewerDep, back_to, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings/tokens")

_DAY_S: Final = 86400
_LIVES: Final = (
    ("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "never"),
)  # fmt: skip
_SCOPES: Final = (
    ("read", "reads what you may read"),
    ("write", "also pushes and changes what your roles allow"),
    ("admin", "everything on this hub, as its administrator"),
)
_EMPTY: Final = {"label": "", "scope": "read", "days": "90"}


@router.get("")
def show_tokens(request: Request, hub: HubDep, viewer: ViewerDep) -> Response:
    """Show the tokens, without their secrets, and the form for a new one."""
    return _page(request, hub, viewer)


@router.post("")
def create_token(request: Request, hub: HubDep, viewer: ViewerDep, form: FormDep) -> Response:
    """Make a token, and show its secret this once."""
    try:
        scope, days, label = form.get("scope", ""), form.get("days", ""), form.get("label", "")
        if not label:
            raise InvalidRequest("say what the token is for, so that you know it again")
        ttl_s = number_in(form, "days") * _DAY_S if days else None
        # create_own() refuses what is no scope.
        secret = tokens.create_own(hub.registry, viewer, scope, label, ttl_s)  # type: ignore[arg-type]
    except RegistryError as error:
        return _page(request, hub, viewer, error, form={**_EMPTY, **form})
    return _page(request, hub, viewer, secret=secret)


@router.post("/revoke")
def revoke_token(hub: HubDep, viewer: ViewerDep, form: FormDep) -> Response:
    """Make a token useless at once."""
    tokens.revoke_own(hub.registry, viewer, number_in(form, "id"))
    return back_to("/-/settings/tokens")


def _page(
    request: Request,
    hub: Hub,
    viewer: Caller,
    error: RegistryError | None = None,
    *,
    secret: str | None = None,
    form: dict[str, str] | None = None,
) -> Response:
    allowed = get_args(Scope) if viewer.is_superuser else ("read", "write")
    return page(
        request, hub, viewer, "tokens", error,
        tokens=tokens.list_tokens(hub.registry, viewer.name)[::-1],
        secret=secret, form=form or _EMPTY, lives=_LIVES,
        scopes=[each for each in _SCOPES if each[0] in allowed],
    )  # fmt: skip
