"""The first page of administrators: what needs attention, and how the hub grows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry.leases.processes import list_processes
from deltahub.registry.reports.history import Moment
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.monitoring.dashboard import Overview
from deltahub.server.web import charts
from deltahub.server.web.admin.viewer import AdminDep, DashboardDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin")

SPANS: Final = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "a year"), (3650, "all"))
_KINDS: Final = {"pack": "packs", "copy": "second copies", "upload": "uploads", "xorb": "xorbs"}
# Families of a chart.
_MOST_FAMILIES: Final = 8
# Bars of one hour each.
_MOST_BARS: Final = 96
_GOOD_AND_BAD: Final = ("#2f6feb", "#c92a2a")


@router.get("")
def show_overview(
    request: Request,
    hub: HubDep,
    viewer: AdminDep,
    dashboard: DashboardDep,
    days: Annotated[int, Query(ge=1, le=3650)] = 30,
) -> Response:
    """Show the state of the hub."""
    found = dashboard.overview()
    moments = dashboard.history(days)
    return render(
        request, hub, viewer, "admin/overview.html",
        found=found, days=days, spans=SPANS, moments=moments, traffic=hub.traffic,
        processes=list_processes(hub.registry), charts=_charts(found, moments),
    )  # fmt: skip


def _sums(moments: Sequence[Moment]) -> tuple[list[datetime], dict[str, list[int]]]:
    """(times, sums by name) of what came since the moment before: by the day for many moments."""
    by_time: dict[datetime, list[Moment]] = {}
    for each in moments:
        start = each.at.replace(hour=0) if len(moments) > _MOST_BARS else each.at
        by_time.setdefault(start, []).append(each)
    names = ("sent_bytes", "received_bytes", "jobs_done", "jobs_failed")
    parts = by_time.values()
    sums = {name: [sum(getattr(each, name) for each in part) for part in parts] for name in names}
    return list(by_time), sums


def _charts(found: Overview, moments: Sequence[Moment]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if len(moments) > 1:
        times = [each.at for each in moments]
        made["bytes"] = charts.over_time(
            times,
            {
                "files, as pushed": [each.logical_bytes for each in moments],
                "stored": [each.stored_in_all for each in moments],
            },
        )
        made["stored"] = charts.over_time(
            times,
            {
                label: [each.stored_bytes.get(kind, 0) for each in moments]
                for kind, label in _KINDS.items()
                if any(each.stored_bytes.get(kind) for each in moments)
            },
            is_stacked=True,
        )
        starts, sums = _sums(moments)
        made["traffic"] = charts.bars_over_time(
            starts, {"sent": sums["sent_bytes"], "received": sums["received_bytes"]}
        )
        made["jobs"] = charts.bars_over_time(
            starts, {"done": sums["jobs_done"], "failed": sums["jobs_failed"]}
        )
        made["jobs"]["color"] = _GOOD_AND_BAD
    if found.codecs:
        made["codecs"] = charts.bars(
            [each.codec for each in found.codecs],
            {
                "stored": [each.total.stored_bytes for each in found.codecs],
                "saved": [max(each.saved_bytes, 0) for each in found.codecs],
            },
        )
    if found.families:
        shown = found.families[:_MOST_FAMILIES]
        made["families"] = charts.bars(
            [each.base for each in shown],
            {
                "stored": [each.stored_bytes for each in shown],
                "saved": [max(each.saved_bytes, 0) for each in shown],
            },
        )
    return made
