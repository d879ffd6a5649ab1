"""Repositories and their refs."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog import refs, repositories
from deltahub.registry.catalog.lists import search
from deltahub.registry.catalog.repositories import RepositoryInfo
from deltahub.registry.ingest import make_public
from deltahub.registry.reencode.withdraw import Change, withdraw
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.base import json_answer
from deltahub.server.schemas.repositories import (
    RefList,
    RefOut,
    RepositoryIn,
    RepositoryOut,
    RepositoryPage,
    VisibilityIn,
    WithdrawalOut,
)
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import answer_in_pieces, json_with_lists
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/repositories", tags=["repositories"])

_WAITS: dict[int | str, dict[str, Any]] = {
    202: {"model": WithdrawalOut, "description": "a job does it, and stores other models first"}
}


@router.post("", status_code=201)
def create_repository(body: RepositoryIn, hub: HubDep, caller: CallerDep) -> RepositoryOut:
    """Create an empty repository in a namespace to which the caller may write."""
    made = repositories.create_repository(
        hub.registry, caller, body.name, private=body.private, push_bytes=body.push_bytes
    )
    return _shown(made)


@router.get("", response_model=RepositoryPage)
@reads(is_long=True)
def list_repositories(
    hub: HubDep,
    caller: CallerDep,
    namespace: str | None = None,
    part: Annotated[str | None, Query(alias="search", description="a part of the name")] = None,
    limit: Annotated[int, Query(ge=1, le=search.MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before")] = None,
    sort: Annotated[
        search.Order,
        Query(
            description="created, changed: the latest first; downloads, size, saved: the most first"
        ),
    ] = "created",
) -> Response:
    """List the repositories that the caller may read, newest first.

    A page of a search may have fewer items than `limit`, or none, and still a next one.
    """
    page = search.list_repositories(hub.registry, caller, namespace, part, limit, cursor, sort)
    shown = [_shown(item) for item in page.items]
    return json_answer(RepositoryPage(items=shown, next_cursor=page.next_cursor))


@router.get("/{namespace}/{name}")
def get_repository(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> RepositoryOut:
    """Show one repository."""
    return _shown(repositories.get_repository(hub.registry, caller, f"{namespace}/{name}"))


@router.patch("/{namespace}/{name}", response_model=RepositoryOut, responses=_WAITS)
async def update_repository(
    namespace: str, name: str, body: VisibilityIn, hub: HubDep, caller: CallerDep
) -> RepositoryOut | Response:
    """Make a repository with all its revisions private or public.

    Making it public takes as long as reading all its files; until then it stays private. A request
    that was cut off can be repeated: files that are done are not read again. A repository becomes
    private at once, unless models of others are stored as differences from it. Then the answer is
    202: a job stores those without it first, and until then the repository stays public.
    """
    full_name = f"{namespace}/{name}"
    if body.private:
        waiting = await hub.change(caller, partial(_withdraw, hub, caller, full_name, "private"))
        if waiting is not None:
            return waiting
    else:
        publish = partial(make_public.make_public, hub.registry, hub.reader, caller, full_name)
        await hub.publish(caller, publish)
    show = partial(repositories.get_repository, hub.registry, caller, full_name)
    return _shown(await hub.change(caller, show))


@router.delete("/{namespace}/{name}", status_code=204, response_model=None, responses=_WAITS)
def delete_repository(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> Response:
    """Delete a repository with all its revisions; garbage collection frees its bytes later.

    If models of others are stored as differences from it, the answer is 202: a job stores those
    without it first, and until then the repository stays.
    """
    waiting = _withdraw(hub, caller, f"{namespace}/{name}", "delete")
    return waiting or Response(status_code=204)


def _withdraw(hub: Hub, caller: Caller | None, name: str, change: Change) -> Response | None:
    waiting = withdraw(hub.registry, caller, name, change)
    if waiting is None:
        return None
    body = WithdrawalOut(job_id=waiting.job_id, models=waiting.models)
    return JSONResponse(body.model_dump(), status_code=202)


@router.get("/{namespace}/{name}/refs", response_model=RefList)
@reads(is_long=True)
def list_refs(
    namespace: str, name: str, request: Request, hub: HubDep, caller: CallerDep
) -> Response:
    """List branches and tags."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
    pages = (page for kind in refs.KINDS for page in refs.ref_pages(hub.registry, repository, kind))
    items = ([_ref(ref) for ref in page] for page in pages)
    pieces = json_with_lists({}, {"items": items})
    return answer_in_pieces(pieces, hub.reads, client_key(request, caller))


def _ref(ref: refs.RefInfo) -> dict[str, str]:
    return RefOut.model_validate(ref).model_dump()


def _shown(info: RepositoryInfo) -> RepositoryOut:
    return RepositoryOut(
        name=info.name,
        private=info.is_private,
        role=info.caller_role,
        created_at=info.created_at,
        head=info.head,
        downloads=info.downloads,
    )
