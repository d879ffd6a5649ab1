"""How a revision is stored, and the bases of its weights."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from deltahub.registry.access.repositories import load_repository
from deltahub.registry.quotas.usage import usage_of_repository
from deltahub.registry.reports.revision import report_revision
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.info import (
    BaseReportOut,
    FileReportOut,
    InfoOut,
    TotalsOut,
    UsageOut,
)
from deltahub.server.streaming.long_answers import json_with_lists
from deltahub.server.turns import reads

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["revisions"]
)


@router.get("/info", response_model=InfoOut)
@reads(is_long=True, is_heavy=True)
def get_info(
    namespace: str,
    name: str,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
    brief: Annotated[bool, Query(description="leave the tensors out, which is faster")] = False,
) -> Response:
    """Show codec and stored bytes of every tensor, shared bytes, declared and measured base."""
    report = report_revision(
        hub.registry, hub.reader, caller, f"{namespace}/{name}", revision, is_brief=brief
    )
    base = BaseReportOut.model_validate(report.base)
    totals = TotalsOut(
        size=report.size,
        own=report.totals.own,
        shared=report.totals.shared,
        base=report.totals.base,
    )
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        usage = UsageOut.model_validate(usage_of_repository(session, repository.id))
    fields = InfoOut(commit=report.commit, files=[], totals=totals, base=base, usage=usage)
    shown = fields.model_dump(mode="json", exclude={"files"})
    files = ([FileReportOut.model_validate(file).model_dump(mode="json")] for file in report.files)
    return Response(
        b"".join(json_with_lists(shown, {"files": files})), media_type="application/json"
    )
