"""The first page of a model: its card, and what it is."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.catalog import repositories
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)


@router.get("/{namespace}/{name}")
def show_model(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show a model's card."""
    info = repositories.get_repository(hub.registry, viewer, f"{namespace}/{name}")
    return render(request, hub, viewer, "model/overview.html", model=info)
