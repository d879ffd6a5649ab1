"""Steps of a run: their list, and differences between two of them."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.runs import steps
from deltahub.registry.downloads.differences import Wanted, encode_differences
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.repositories import StepOut, StepPage
from deltahub.server.schemas.transfer import DifferencesIn
from deltahub.server.turns import reads

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["steps"]
)


@router.get("/steps")
@reads()
def list_steps(
    namespace: str,
    name: str,
    hub: HubDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=steps.PAGE_STEPS)] = 100,
    cursor: Annotated[
        int | None, Query(ge=0, le=steps.MAX_STEP, description="next_cursor of the page before")
    ] = None,
) -> StepPage:
    """List the steps of a run that are there, the newest first. A repository may have none."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = steps.list_steps(session, repository, cursor, limit)
    more = str(found[-1].number) if len(found) == limit else None
    return StepPage(items=[StepOut.model_validate(each) for each in found], next_cursor=more)


@router.post(
    "/differences",
    response_class=Response,
    responses={
        200: {
            "content": {"application/octet-stream": {}},
            "description": "frames back to back, of the first tensors that were asked: ask again "
            "for what is missing",
        }
    },
)
@reads(is_long=True, is_heavy=True, is_bounded=True)
def get_differences(
    namespace: str,
    name: str,
    body: DifferencesIn,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Encode tensors of this revision as differences from those of another one, and send them."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, revision)
        base = None if body.base is None else resolve_revision(session, repository, body.base)
    wanted = [
        Wanted(bytes.fromhex(tensor), None if its_base is None else bytes.fromhex(its_base))
        for tensor, its_base in body.tensors
    ]
    frames = encode_differences(hub.registry, hub.reader, found, base, wanted, body.first_byte)
    # In memory already: it is sent in a slot of long answers, which was there before it was made.
    return Response(
        b"".join(frames),
        media_type="application/octet-stream",
        headers={"X-DeltaHub-Commit": found.commit, "Cache-Control": "private, no-cache"},
    )
