"""What the viewer's namespaces use, and may use."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access import organizations
from deltahub.registry.quotas import limits
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.web.settings.parts import ViewerDep, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings/storage")

_PAGE: Final = 20


@router.get("")
def show_storage(request: Request, hub: HubDep, viewer: ViewerDep, after: str = "") -> Response:
    """Show the namespaces, some on a page: each is counted anew."""
    found = organizations.namespaces_of(hub.registry, viewer)
    names = sorted(each for each in found if each > after)
    rows = []
    for name in names[:_PAGE]:
        used, may = limits.show_limits(hub.registry, viewer, name)
        amounts = (
            ("Stored", used.stored_bytes, may.stored_bytes, "bytes"),
            ("Files as pushed", used.logical_bytes, may.logical_bytes, "bytes"),
            ("Repositories", used.repositories, may.repositories, "number"),
        )
        role = "your own" if name == viewer.name else f"role {found[name]}"
        rows.append({"name": name, "role": role, "amounts": amounts})
    after_this = names[_PAGE - 1] if len(names) > _PAGE else None
    return page(request, hub, viewer, "storage", rows=rows, after=after_this)
