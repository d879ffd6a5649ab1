"""Downloads for clients that rebuild files themselves: recipes, and frames of tensors."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry import Revision
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.downloads.links import link_frames, link_origin
from deltahub.registry.downloads.plan import (
    PlannedTensor,
    paths_with,
    plan_download,
    stream_frames,
)
from deltahub.registry.errors import DataLost
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import note_file
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.routes.files import RevisionQuery, find_file
from deltahub.server.schemas.transfer import FrameLinksOut, FramesIn, RecipePlanOut
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import json_text, json_with_lists
from deltahub.server.turns import reads

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["rebuilding"]
)

_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "the bytes"}
}


@router.get("/recipes/{path:path}", response_model=RecipePlanOut)
@reads(is_long=True, is_heavy=True)
def get_recipe(
    namespace: str,
    name: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Show which tensors make up a file and how each is stored; not_ready before its ingest."""
    _, entry = find_file(request, hub, caller, f"{namespace}/{name}", revision, path)
    plan = plan_download(hub.registry, hub.reader, caller, entry.file)
    fields = {
        "recipe": plan.recipe.hex(),
        "size": plan.size,
        "sha256": plan.sha256,
        "link_origin": link_origin(hub.registry),
    }
    tensors = ([_planned(tensor)] for tensor in plan.tensors)
    text = b"".join(json_with_lists(fields, {"tensors": tensors}))
    return Response(text, media_type="application/json")


def _planned(tensor: PlannedTensor) -> dict[str, Any]:
    # The fields of PlannedTensorOut, of which a file may have a million.
    return {
        "id": tensor.id.hex(),
        "size": tensor.size,
        "encoded_size": tensor.encoded_size,
        "codec": tensor.codec,
        "bases": [base.hex() for base in tensor.bases],
        "depth": tensor.depth,
    }


@router.get("/recipe-bytes/{path:path}", response_class=Response, responses=_BYTES)
@reads(is_long=True, is_heavy=True)
def get_recipe_bytes(
    namespace: str,
    name: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Send the recipe of a file; get_recipe names its BLAKE3-256."""
    _, entry = find_file(request, hub, caller, f"{namespace}/{name}", revision, path)
    data = hub.reader.read_recipe(entry.file)
    return Response(data, media_type="application/octet-stream")


@router.post("/frames", response_class=Response, responses=_BYTES)
@reads(is_heavy=True)
def get_frames(
    namespace: str,
    name: str,
    body: FramesIn,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Send frames of tensors of this revision, concatenated; frames of a tensor are in order."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, revision)
    tensors = [bytes.fromhex(tensor) for tensor in body.tensors]
    stream = stream_frames(hub.registry, hub.reader, caller, found, tensors)
    return hub.stream(
        client_key(request, caller),
        _naming_files(stream.chunks, request, hub, f"{namespace}/{name}", found),
        status_code=200,
        headers={
            "Content-Type": "application/octet-stream",
            "Content-Length": str(stream.n_bytes),
            "X-DeltaHub-Commit": found.commit,
            "Cache-Control": "private, no-cache",
        },
        label=f"{namespace}/{name}@{found.commit} frames",
    )


def _naming_files(
    chunks: Iterator[bytes], request: Request, hub: Hub, name: str, revision: Revision
) -> Iterator[bytes]:
    """The same chunks. If a tensor is lost, its error names the files of the revision with it."""
    try:
        yield from chunks
    except DataLost as exc:
        if exc.tensor is not None:
            with hub.registry.db.read() as session:
                note_file(request, name, *paths_with(session, revision, exc.tensor))
        raise


@router.post("/frames/links", response_model=FrameLinksOut)
@reads(is_long=True, is_heavy=True)
def get_frame_links(
    namespace: str,
    name: str,
    body: FramesIn,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Give links to read such frames from the object store, for what the caller may read only."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, revision)
    tensors = [bytes.fromhex(tensor) for tensor in body.tensors]
    page = link_frames(hub.registry, caller, found, tensors)
    links = [
        {
            "url": link.url,
            "start": link.start,
            "end": link.end,
            "frames": [{"tensor": number, "length": n} for number, n in link.frames],
        }
        for link in page.links
    ]
    return Response(
        json_text({"n_tensors": page.n_tensors, "links": links}),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
