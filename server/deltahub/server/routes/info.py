"""How a revision is stored, and the bases of its weights."""

from fastapi import APIRouter

from deltahub.registry.reports.revision import report_revision
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.info import BaseReportOut, FileReportOut, InfoOut, TotalsOut

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["revisions"]
)


@router.get("/info")
def get_info(
    namespace: str, name: str, hub: HubDep, caller: CallerDep, revision: RevisionQuery = "main"
) -> InfoOut:
    """Show codec and stored bytes of every tensor, shared bytes, declared and measured base."""
    report = report_revision(hub.registry, hub.reader, caller, f"{namespace}/{name}", revision)
    return InfoOut(
        commit=report.commit,
        files=[FileReportOut.model_validate(file) for file in report.files],
        totals=TotalsOut(
            size=report.size,
            own=report.totals.own,
            shared=report.totals.shared,
            base=report.totals.base,
        ),
        base=BaseReportOut.model_validate(report.base),
    )
