"""How a revision is stored, and the bases of its weights."""

from fastapi import APIRouter
from starlette.responses import Response

from deltahub.registry.reports.revision import report_revision
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.base import json_answer
from deltahub.server.schemas.info import BaseReportOut, FileReportOut, InfoOut, TotalsOut
from deltahub.server.turns import reads

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["revisions"]
)


@router.get("/info", response_model=InfoOut)
@reads(is_long=True, is_heavy=True)
def get_info(
    namespace: str, name: str, hub: HubDep, caller: CallerDep, revision: RevisionQuery = "main"
) -> Response:
    """Show codec and stored bytes of every tensor, shared bytes, declared and measured base."""
    report = report_revision(hub.registry, hub.reader, caller, f"{namespace}/{name}", revision)
    shown = InfoOut(
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
    return json_answer(shown)
