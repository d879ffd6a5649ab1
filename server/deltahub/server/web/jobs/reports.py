"""The report of a model that a job made, for everybody who may read the model."""

from collections.abc import Iterable
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
from deltahub.server.web.jobs.kinds import KindPages, askable, pages_of
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
    found = _first_report(hub, revision, askable())
    if found is None:
        raise HTTPException(404)
    pages, report = found
    return render(
        request, hub, viewer, "jobs/report.html",
        pages=pages, name=full_name, result={"name": full_name, "report": report},
    )  # fmt: skip


def has_report(hub: Hub, revision: Revision) -> bool:
    """Whether the page of the report has one to show; see find_report()."""
    return find_report(hub, revision) is not None


def find_report(hub: Hub, revision: Revision, kind: str | None = None) -> dict[str, Any] | None:
    """The report that a revision's files have, of one kind or of any.

    None also if the file cannot be read, so that a model whose report is damaged has its page.
    """
    try:
        found = _first_report(hub, revision, askable() if kind is None else [pages_of(kind)])
    except Cancelled:
        raise
    except (RegistryError, CodecError):
        return None
    return None if found is None else found[1]


def _first_report(
    hub: Hub, revision: Revision, kinds: Iterable[KindPages]
) -> tuple[KindPages, dict[str, Any]] | None:
    """The first of these kinds that has a report of its form in the revision, and the report."""
    files = {each.report_file: each for each in kinds if each.report_file and each.report}
    with hub.registry.db.read() as session:
        entries = entries_at(session, revision, files)
    for path, pages in files.items():
        data = read_small(hub.reader, entries[path], _MOST_BYTES) if path in entries else None
        if data is None or pages.report_type is None:
            continue
        try:
            return pages, pages.report_type.model_validate_json(data).model_dump()
        except ValidationError:
            continue  # anybody may push a file of this name
    return None
