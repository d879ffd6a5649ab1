"""The first page: all models that the viewer may read, found as one types."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry.catalog.lists import search
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

_PAGE: Final = 30


@router.get("/")
def show_home(
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    q: Annotated[str, Query(max_length=200)] = "",
    sort: search.Order = "changed",
    after: str | None = None,
) -> Response:
    """Show the models that match, the latest first."""
    with hub.registry.db.read() as session:
        found = search.search(
            session, viewer, words=q.split(), order=sort, after=after, limit=_PAGE
        )
    return render(
        request, hub, viewer, "home.html", q=q, sort=sort, found=found, orders=search.ORDERS
    )
