"""Uploads by tensor: query which files and tensors the hub has, send frames, then recipes."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from deltahub.registry.access.caller import require_writer
from deltahub.registry.uploads import client_packs, known_files, known_tensors, recipes
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.transfer import (
    FileQueryIn,
    FileQueryOut,
    PackIn,
    PackOut,
    RecipeAcceptedOut,
    TensorQueryIn,
    TensorQueryOut,
)
from deltahub.server.streaming.bodies import read_body
from deltahub.server.streaming.body_wait import BodyWait

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["tensors"]
)

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/files/query")
def query_files(
    namespace: str, name: str, body: FileQueryIn, hub: HubDep, caller: CallerDep
) -> FileQueryOut:
    """Return those of the files that a commit to this repository may name without an upload."""
    wanted = [(file.sha256, file.size) for file in body.files]
    have = known_files.query_and_keep(hub.registry, caller, f"{namespace}/{name}", wanted)
    return FileQueryOut(have=have)


@router.post("/tensors/query")
def query_tensors(
    namespace: str, name: str, body: TensorQueryIn, hub: HubDep, caller: CallerDep
) -> TensorQueryOut:
    """Return those of the tensors that the hub has for this repository, kept for a day."""
    wanted = [(bytes.fromhex(tensor), size) for tensor, size in body.tensors]
    have = known_tensors.query_and_hold(hub.registry, caller, f"{namespace}/{name}", wanted)
    return TensorQueryOut(have=[tensor.hex() for tensor in have])


@router.post("/packs")
async def accept_pack(
    namespace: str, name: str, body: PackIn, hub: HubDep, caller: CallerDep
) -> PackOut:
    """Store the frames of an uploaded pack, after each was decoded and its hash verified."""
    # Not a plain handler: verifying takes seconds, and only proof_threads may run at once.
    take = partial(
        client_packs.accept_pack,
        hub.registry,
        hub.reader,
        caller,
        f"{namespace}/{name}",
        body.sha256,
    )
    taken = await hub.verify(caller, take)
    return PackOut(tensors=taken.n_tensors, waiting=taken.n_waiting)


@router.post(
    "/recipes",
    openapi_extra=_BODY,
    responses={202: {"model": RecipeAcceptedOut, "description": "a job proves it now"}},
)
@streams_body
async def accept_recipe(
    namespace: str,
    name: str,
    request: Request,
    response: Response,
    hub: HubDep,
    caller: CallerDep,
) -> RecipeAcceptedOut:
    """Send a recipe that builds a file from tensors of the hub, instead of the file's bytes."""
    request.state.has_unread_body = True
    writer = require_writer(caller)
    wait = BodyWait()
    async with hub.large_bodies.slot(writer.user_id, wait):
        limit = hub.registry.settings.max_recipe_bytes
        body = await read_body(request, limit, hub.settings.idle_s, wait)
        request.state.has_unread_body = False
        submit = partial(recipes.submit_recipe, hub.registry, writer, f"{namespace}/{name}", body)
        submitted = await hub.verify(writer, submit)
    if submitted.job_id is None:
        return RecipeAcceptedOut(state="ready")
    response.status_code = 202
    return RecipeAcceptedOut(state="proving", job_id=submitted.job_id)
