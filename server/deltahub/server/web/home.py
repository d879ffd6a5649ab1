"""The first page: all models that the viewer may read, found as one types."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.lists.filters import CHOICES, FiltersDep, found_models
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)


@router.get("/")
@reads(is_long=True)
def show_home(request: Request, hub: HubDep, viewer: CallerDep, filters: FiltersDep) -> Response:
    """Show the models that match, the latest first."""
    found = found_models(hub, viewer, filters)
    return render(request, hub, viewer, "home.html", found=found, filters=filters, choices=CHOICES)
