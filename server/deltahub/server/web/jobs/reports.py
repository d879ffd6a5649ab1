"""The report of a model that a job made, for everybody who may read the model."""

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import EntryNotFound
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.web.jobs.kinds import KindPages, askable
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/reports")

_MOST_BYTES: Final = 4 << 20


@router.get("/{namespace}/{name}")
def show_report(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show the report that is in the model's files."""
    full_name = f"{namespace}/{name}"
    for pages in askable():
        found = _report(hub, viewer, full_name, pages)
        if found is not None:
            return render(
                request, hub, viewer, "jobs/report.html",
                pages=pages, name=full_name, result={"name": full_name, "report": found},
            )  # fmt: skip
    raise HTTPException(404)


def _report(hub: Hub, viewer: Caller | None, name: str, pages: KindPages) -> Any:
    """The report of this kind on main; None if the model has none of its form."""
    if pages.report_file is None or pages.report_type is None or pages.report is None:
        return None
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, name)
        revision = resolve_revision(session, repository, "main")
        try:
            entry = find_entry(session, revision, pages.report_file)
        except EntryNotFound:
            return None
    if entry.file.size > _MOST_BYTES:
        return None
    data = b"".join(hub.reader.stream_pieces(entry.file, 0, entry.file.size))
    try:
        return pages.report_type.model_validate_json(data).model_dump()
    except ValidationError:
        return None
