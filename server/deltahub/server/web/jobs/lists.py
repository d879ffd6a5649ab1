"""One's own jobs, and the models that a form suggests."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry.access.caller import NO_TOKEN, Caller
from deltahub.registry.catalog.lists import search
from deltahub.registry.catalog.lists.model_tags import keys_of_role, keys_of_tag
from deltahub.registry.errors import Unauthorized
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.tables.jobs import OWN_JOBS
from deltahub.server.web.jobs.kinds import askable, pages_of
from deltahub.server.web.rendering import render
from deltahub.server.web.tables import show_table

router = APIRouter(route_class=BoundedRoute, prefix="/-/jobs")

_SUGGESTED: Final = 20
# Fine-tunes of a base that a form lists to be chosen.
_MOST_CHILDREN: Final = 200


def required(viewer: Caller | None) -> Caller:
    """Return the viewer; Unauthorized for a guest, who is sent to log in."""
    if viewer is None:
        raise Unauthorized(NO_TOKEN)
    return viewer


@router.get("")
def show_jobs(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show the viewer's own jobs."""
    return show_table(request, hub, required(viewer), OWN_JOBS, "jobs/list.html", kinds=askable())


@router.get("/suggest")
def suggest_models(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show models whose names have the words of the only field that is sent."""
    words = next(iter(request.query_params.values()), "")[:200].partition("@")[0]
    with hub.registry.db.read() as session:
        found = search.search(
            session, viewer, words=words.split(), order="changed", limit=_SUGGESTED
        )
        names = [each.name for each in found.items]
    return render(request, hub, viewer, "jobs/suggestions.html", names=names)


@router.get("/choices/{kind}")
def show_choices(
    kind: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    base: Annotated[str, Query(max_length=250)] = "",
    models: Annotated[tuple[str, ...], Query()] = (),
) -> Response:
    """Show the part of a kind's form that depends on the base that was chosen."""
    template = pages_of(kind).choices if kind in {each.kind for each in askable()} else None
    if template is None:
        return Response(status_code=404)
    children = children_of(hub, viewer, base)
    chosen = [name.strip() for each in models for name in each.splitlines() if name.strip()]
    return render(
        request, hub, viewer, template, base=base, children=children, chosen=chosen, problem=None
    )


def children_of(hub: Hub, viewer: Caller | None, base: str) -> list[str]:
    """The models that say, or whose weights show, that they were made from this base."""
    name = base.partition("@")[0].strip()
    if not name:
        return []
    with hub.registry.db.read() as session:
        keys = keys_of_tag(session, viewer, f"base_model:{name}")
        if keys is None:
            return []
        found = search.search(session, viewer, keys=[keys], order="changed", limit=_MOST_CHILDREN)
        names = {each.name for each in found.items if each.name != name}
        # What was merged already is no fine-tune, and what adapters start from is no adapter.
        merges = keys_of_tag(session, viewer, f"base_model:merge:{name}")
        for others in ([merges], [keys, keys_of_role("kit")]):
            left_out = [each for each in others if each is not None]
            if left_out:
                found = search.search(session, viewer, keys=left_out, limit=_MOST_CHILDREN)
                names -= {each.name for each in found.items}
        return sorted(names)
