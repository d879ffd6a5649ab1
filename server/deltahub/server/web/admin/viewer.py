"""Who sees the pages of administrators."""

from typing import Annotated

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from deltahub.registry.access.caller import NO_TOKEN, Caller
from deltahub.registry.errors import Unauthorized
from deltahub.server.hub import CallerDep
from deltahub.server.monitoring.dashboard import Dashboard
from deltahub.server.monitoring.metrics import Monitoring


async def admin_of(viewer: CallerDep) -> Caller:
    """Return the administrator. For others the page does not exist; guests are led to log in."""
    if viewer is None:
        raise Unauthorized(NO_TOKEN)
    if not viewer.is_superuser:
        raise HTTPException(404)
    return viewer


async def dashboard_of(request: Request) -> Dashboard:
    """Return the reports of this server."""
    monitoring: Monitoring = request.app.state.monitoring
    return monitoring.dashboard


AdminDep = Annotated[Caller, Depends(admin_of)]
DashboardDep = Annotated[Dashboard, Depends(dashboard_of)]
