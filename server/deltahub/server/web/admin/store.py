"""What the store holds, what of it is garbage, and how much of it was proved."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.maintenance.gc.summary import WHY, lines_of
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.web import charts
from deltahub.server.web.admin.lists import STORAGE_TABS
from deltahub.server.web.admin.viewer import AdminDep, DashboardDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin")


@router.get("/storage")
def show_store(
    request: Request, hub: HubDep, viewer: AdminDep, dashboard: DashboardDep
) -> Response:
    """Show the store."""
    plan = dashboard.plan()
    reasons = None
    if plan is not None and plan.reasons:
        largest = sorted(plan.reasons.items(), key=lambda each: -each[1])
        reasons = charts.bars([WHY[why] for why, _ in largest], {"bytes": [n for _, n in largest]})
    return render(
        request, hub, viewer, "admin/storage.html",
        tabs=STORAGE_TABS, plan=plan, lines=[] if plan is None else lines_of(plan),
        reasons=reasons, totals=dashboard.totals(), coverage=dashboard.coverage(),
        condition=dashboard.condition(), data_dir=hub.registry.data_dir,
        settings=hub.registry.settings,
    )  # fmt: skip
