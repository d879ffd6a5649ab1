"""The page of a user or an organization: its models, and who is a member."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.quotas.namespaces import get_namespace
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.lists.filters import CHOICES, FiltersDep, found_models
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)


@router.get("/{namespace}")
@reads(is_long=True)
def show_namespace(
    namespace: str, request: Request, hub: HubDep, viewer: CallerDep, filters: FiltersDep
) -> Response:
    """Show the models of a namespace that the viewer may read."""
    info = get_namespace(hub.registry, viewer, namespace)
    found = found_models(hub, viewer, filters, info.name)
    return render(
        request, hub, viewer, "lists/namespace.html", info=info, found=found, filters=filters,
        choices=CHOICES,
    )  # fmt: skip
