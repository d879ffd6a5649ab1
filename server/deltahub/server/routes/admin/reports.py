"""Reports on the whole hub, and all tables of administrators."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request

from deltahub.registry.access.caller import NO_TOKEN, Caller
from deltahub.registry.errors import Forbidden, NotFound, Unauthorized, Unavailable
from deltahub.registry.leases.processes import list_processes
from deltahub.registry.maintenance.gc.summary import lines_of
from deltahub.registry.names import quoted
from deltahub.registry.reports.lists.pages import MOST, Asked
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.monitoring.dashboard import Dashboard
from deltahub.server.monitoring.metrics import Monitoring
from deltahub.server.monitoring.settings_in_force import settings_in_force
from deltahub.server.schemas.admin import (
    AttentionOut,
    CodecSavingOut,
    CoverageOut,
    FamilyOut,
    GarbageOut,
    HistoryOut,
    MomentOut,
    OverviewOut,
    PlanLineOut,
    ProcessesOut,
    ProcessOut,
    SettingOut,
    TableOut,
)
from deltahub.server.tables.all import TABLES

router = APIRouter(route_class=BoundedRoute, prefix="/admin", tags=["admin"])

# Parameters of a table that are no filters.
_OWN: Final = frozenset({"sort", "after", "limit"})


async def admin_of(caller: CallerDep) -> Caller:
    """Return the administrator. Unauthorized, Forbidden."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    if not caller.is_superuser:
        raise Forbidden("this needs an administrator's token of scope admin")
    return caller


async def dashboard_of(request: Request) -> Dashboard:
    """Return the reports of this server."""
    monitoring: Monitoring = request.app.state.monitoring
    return monitoring.dashboard


AdminDep = Annotated[Caller, Depends(admin_of)]
DashboardDep = Annotated[Dashboard, Depends(dashboard_of)]


@router.get("/overview")
def get_overview(caller: AdminDep, dashboard: DashboardDep) -> OverviewOut:
    """Show what needs attention, what the hub holds, and what it saves."""
    found = dashboard.overview()
    totals, condition = found.totals, found.condition
    return OverviewOut(
        attention=[AttentionOut.model_validate(each) for each in found.attention],
        n_repositories=None if totals is None else totals.n_repositories,
        n_users=None if totals is None else totals.n_users,
        logical_bytes=None if totals is None else totals.logical_bytes,
        stored_bytes=None if totals is None else dict(totals.stored_bytes),
        findings=None if totals is None else dict(totals.findings),
        disk_free=None if condition is None else condition.disk_free,
        disk_size=None if condition is None else condition.disk_size,
        codecs=None
        if found.codecs is None
        else [CodecSavingOut(codec=each.codec, **vars(each.total)) for each in found.codecs],
        families=None
        if found.families is None
        else [FamilyOut.model_validate(each) for each in found.families],
        coverage=None if found.coverage is None else CoverageOut.model_validate(found.coverage),
    )


@router.get("/history")
def get_hub_history(
    caller: AdminDep, dashboard: DashboardDep, days: Annotated[int, Query(ge=1, le=3650)] = 30
) -> HistoryOut:
    """Show what the hub held over time: by the hour, or in longer steps for more days."""
    return HistoryOut(items=[MomentOut.model_validate(each) for each in dashboard.history(days)])


@router.get("/garbage")
def get_garbage(caller: AdminDep, dashboard: DashboardDep) -> GarbageOut:
    """Show what `deltahub gc --apply` would delete. Only the operator's shell can apply it."""
    plan = dashboard.plan()
    if plan is None:
        raise Unavailable("the plan is being made: ask again in some seconds")
    return GarbageOut(
        made_at=plan.made_at,  # type: ignore[arg-type]  # text in ISO 8601, which pydantic reads
        freed_bytes=plan.freed_bytes,
        later_bytes=plan.later_bytes,
        waiting_bytes=plan.waiting_bytes,
        reasons=dict(plan.reasons),
        lines=[PlanLineOut.model_validate(each) for each in lines_of(plan)],
        doubts=list(plan.doubts),
    )


@router.get("/processes")
def list_hub_processes(hub: HubDep, caller: AdminDep) -> ProcessesOut:
    """Show which processes run; of a hub on one machine, its worker."""
    return ProcessesOut(
        items=[
            ProcessOut(
                command=each.command, host=each.host, pid=each.pid,
                queues=list(each.about.get("queues", ())), device=each.about.get("device"),
                begun_at=each.begun_at, looked_at=each.looked_at,
            )
            for each in list_processes(hub.registry)
        ]
    )  # fmt: skip


@router.get("/settings")
def get_settings(hub: HubDep, caller: AdminDep) -> dict[str, list[SettingOut]]:
    """Show the settings in force of the hub, this server and the workers, without secrets."""
    return {
        process: [SettingOut.model_validate(each) for each in group]
        for process, group in settings_in_force(hub).items()
    }


@router.get("/tables/{table}")
def get_table(
    table: Annotated[str, Path(description=", ".join(TABLES))],
    request: Request,
    hub: HubDep,
    caller: AdminDep,
    sort: Annotated[
        str | None, Query(description="a column, with - before it for the other direction")
    ] = None,
    after: Annotated[str | None, Query(description="from the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> TableOut:
    """Show a page of a table. Further parameters are its filters, as on its page under /-/admin."""
    found = TABLES.get(table)
    if found is None:
        raise NotFound(f"there is no table {quoted(table)}: one of {', '.join(TABLES)}")
    given = {key: value for key, value in request.query_params.items() if key not in _OWN}
    page = found.page(hub, caller, Asked(sort, after, limit), given)
    return TableOut(items=found.plain(page.items), after=page.after)
