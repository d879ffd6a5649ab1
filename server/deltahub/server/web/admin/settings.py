"""The settings of this hub's processes, as they are in force."""

import json

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.monitoring.settings_in_force import settings_in_force
from deltahub.server.web.admin.viewer import AdminDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin")


@router.get("/settings")
def show_settings(
    request: Request, hub: HubDep, viewer: AdminDep, changed: bool = False
) -> Response:
    """Show all settings, or those that differ from their defaults."""
    groups = settings_in_force(hub)
    if changed:
        groups = {
            name: [each for each in group if each["is_changed"]] for name, group in groups.items()
        }
    if request.query_params.get("format") == "json":
        return Response(json.dumps(groups), media_type="application/json")
    return render(request, hub, viewer, "admin/settings.html", groups=groups, is_changed=changed)
