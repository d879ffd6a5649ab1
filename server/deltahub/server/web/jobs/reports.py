"""The report of a model that a job made, for everybody who may read the model."""

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from deltahub.codecs.errors import CodecError
from deltahub.registry import Revision
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards.facts import read_small
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.errors import Cancelled, RegistryError
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
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, full_name)
        revision = resolve_revision(session, repository, DEFAULT_BRANCH)
    for pages in askable():
        found = _report(hub, revision, pages)
        if found is not None:
            return render(
                request, hub, viewer, "jobs/report.html",
                pages=pages, name=full_name, result={"name": full_name, "report": found},
            )  # fmt: skip
    raise HTTPException(404)


def has_report(hub: Hub, revision: Revision) -> bool:
    """Whether the page of the report has one to show.

    False if the file cannot be read, so that a model whose report is damaged still has its page.
    """
    try:
        return any(_report(hub, revision, pages) is not None for pages in askable())
    except Cancelled:
        raise
    except (RegistryError, CodecError):
        return False


def _report(hub: Hub, revision: Revision, pages: KindPages) -> Any:
    """The report of this kind in a revision; None if it has none of the kind's form."""
    if pages.report_file is None or pages.report_type is None or pages.report is None:
        return None
    with hub.registry.db.read() as session:
        entry = entries_at(session, revision, [pages.report_file]).get(pages.report_file)
    if entry is None:
        return None
    data = read_small(hub.reader, entry, _MOST_BYTES)
    if data is None:
        return None
    try:
        return pages.report_type.model_validate_json(data).model_dump()
    except ValidationError:
        return None
