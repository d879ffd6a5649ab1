"""Branches and tags of a model."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.history import commits_at
from deltahub.registry.catalog.refs import list_refs
from deltahub.registry.errors import InvalidRequest
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.turns import reads
from deltahub.server.web.model.common import load_model
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

_PAGE: Final = 100


@router.get("/{namespace}/{name}/refs")
@reads(is_long=True)
def show_refs(
    namespace: str,
    name: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    branches_after: Annotated[str, Query(max_length=300)] = "",
    tags_after: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """Show branches and tags, each with its last commit."""
    model = load_model(hub, viewer, f"{namespace}/{name}")
    if "\0" in branches_after + tags_after:
        raise InvalidRequest("the place is wrong: take it from the link to the next page")
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, model.name)
        branches = list_refs(session, repository, "branch", branches_after, _PAGE + 1)
        tags = list_refs(session, repository, "tag", tags_after, _PAGE + 1)
        wanted = {each.commit for each in (*branches, *tags)}
        commits = commits_at(session, repository.id, wanted)
    lists = [
        ("branch", branches[:_PAGE], _next(branches), "branches_after"),
        ("tag", tags[:_PAGE], _next(tags), "tags_after"),
    ]
    return render(
        request, hub, viewer, "model/history/refs.html", model=model, lists=lists, commits=commits
    )


def _next(refs: list) -> str | None:  # type: ignore[type-arg]
    return refs[_PAGE - 1].name if len(refs) > _PAGE else None
