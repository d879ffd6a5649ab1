"""Git LFS uploads: large files, whole or in parts, sent before the commit that names them.

The batch route answers a signed link for each file, because clients follow links without their
token. An LFS object is stored as an upload of the caller and verified by its SHA-256.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.errors import InvalidRequest, LimitExceeded, SizeMismatch
from deltahub.registry.names import validate_sha256
from deltahub.registry.uploads import landing
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.preflight import check_files
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import LengthRequired
from deltahub.server.hf.errors import NotSupported
from deltahub.server.hf.writing.receiving import receive_part
from deltahub.server.hub import CallerDep, Hub, HubDep, NameDep
from deltahub.server.public_url import origin_of
from deltahub.server.signing import caller_of_claims, claims_for
from deltahub.server.streaming.bodies import BodyFeed, discard_body

router = APIRouter(route_class=BoundedRoute)

# As Python and JavaScript clients write it.
_SHA256: Final = ("sha256", "sha_256")
_TYPE: Final = "application/vnd.git-lfs+json"
_MAX_OBJECTS: Final = 1000
_LINK_TTL_S: Final = 86400
_MAX_PARTS: Final = 10_000
_MAX_COMPLETE_BYTES: Final = _MAX_PARTS << 8
_UPLOAD: Final = "lfs upload"


class ObjectIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    oid: str
    size: Annotated[int, Field(ge=0)]


class BatchIn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    operation: Literal["upload", "download"]
    transfers: list[str] = ["basic"]
    objects: Annotated[list[ObjectIn], Field(max_length=_MAX_OBJECTS)]
    hash_algo: str = "sha256"


@router.post("/{namespace}/{name}.git/info/lfs/objects/batch")
def batch(
    name: NameDep, body: BatchIn, request: Request, hub: HubDep, caller: CallerDep
) -> JSONResponse:
    """Return a link for each object that the hub lacks; known objects get no link."""
    if body.operation != "upload":
        raise NotSupported("objects are read at /<namespace>/<name>/resolve/<revision>/<path>")
    if body.hash_algo not in _SHA256:
        raise NotSupported(f"objects are known by sha256, not {body.hash_algo}")
    writer = require_writer(caller)
    requested = [(item.oid, item.size) for item in body.objects]
    known = set(query_and_keep(hub.registry, writer, name, requested))
    max_bytes = hub.registry.settings.max_file_bytes
    check_files(
        hub.registry,
        writer,
        {oid: size for oid, size in requested if oid not in known and size <= max_bytes},
    )
    part_bytes = hub.settings.lfs_part_bytes
    in_parts = "multipart" in body.transfers and any(
        item.size > part_bytes for item in body.objects if item.oid not in known
    )
    origin = origin_of(request)
    objects = []
    for item in body.objects:
        shown: dict[str, Any] = {"oid": item.oid, "size": item.size, "authenticated": True}
        if item.size > max_bytes:
            shown["error"] = {"code": 422, "message": f"files have at most {max_bytes} bytes here"}
        elif item.oid not in known:
            size = part_bytes if in_parts else None
            verify = {"href": f"{origin}/{name}.git/info/lfs/verify", "header": {}}
            shown["actions"] = {
                "upload": _upload_action(hub, writer, origin, item, size),
                "verify": verify,
            }
        objects.append(shown)
    transfer = "multipart" if in_parts else "basic"
    answer = {"transfer": transfer, "objects": objects, "hash_algo": body.hash_algo}
    return JSONResponse(answer, media_type=_TYPE)


@dataclass(frozen=True)
class Link:
    """The contents of a link: the caller, and the object that it uploads."""

    caller: Caller
    oid: str
    size: int


def link_of(token: str, hub: HubDep) -> Link:
    """Verify a link. Raises Unauthorized or Forbidden once its access token may not write."""
    claims = hub.signer.verify(_UPLOAD, token)
    with hub.registry.db.read() as session:
        caller = require_writer(caller_of_claims(session, claims))
    return Link(caller, validate_sha256(str(claims["oid"])), int(claims["size"]))


LinkDep = Annotated[Link, Depends(link_of)]


@router.put("/lfs/objects/{token}")
@streams_body
async def put_object(link: LinkDep, request: Request, hub: HubDep) -> Response:
    """Receive a whole object."""
    length = _content_length(request)
    if length != link.size:
        raise SizeMismatch(f"{link.oid} was announced with {link.size} bytes, and {length} come")
    await _receive(hub, request, link, 0, length)
    return Response()


@router.put("/lfs/objects/{token}/parts/{number}")
@streams_body
async def put_part(link: LinkDep, number: int, request: Request, hub: HubDep) -> Response:
    """Receive one part of an object. Parts may arrive at once; they are written in order."""
    oid, size = link.oid, link.size
    part_bytes = hub.settings.lfs_part_bytes
    offset = (number - 1) * part_bytes
    if number < 1 or offset >= size:
        raise InvalidRequest(f"{oid} of {size} bytes has no part {number}")
    length = _content_length(request)
    if length != min(part_bytes, size - offset):
        raise SizeMismatch(f"part {number} has {min(part_bytes, size - offset)}, not {length}")
    await _receive(hub, request, link, offset, length)
    return Response(headers={"ETag": f'"{oid[:32]}-{number}"'})


async def _discarded(link: LinkDep, request: Request, hub: HubDep) -> None:
    # The body lists the parts and their ETags. The hub knows them already.
    await discard_body(request, _MAX_COMPLETE_BYTES, hub.settings.idle_s)


@router.post("/lfs/objects/{token}/complete", dependencies=[Depends(_discarded)])
@streams_body
def complete_parts(link: LinkDep, hub: HubDep) -> JSONResponse:
    """Check that all parts have come and form the object."""
    _check_complete(hub, link.caller, link.oid, link.size)
    return JSONResponse({"success": True})


@router.post("/{namespace}/{name}.git/info/lfs/verify")
def verify(name: NameDep, body: ObjectIn, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Check that an object has come whole."""
    _check_complete(hub, require_writer(caller), body.oid, body.size)
    return JSONResponse({})


def _upload_action(
    hub: Hub, caller: Caller, origin: str, item: ObjectIn, part_bytes: int | None
) -> dict[str, Any]:
    claims = claims_for(caller, {"oid": item.oid, "size": item.size})
    href = f"{origin}/lfs/objects/{hub.signer.sign(_UPLOAD, claims, _LINK_TTL_S)}"
    if part_bytes is None:
        return {"href": href, "header": {}}
    n_parts = max(-(-item.size // part_bytes), 1)
    if n_parts > _MAX_PARTS:
        raise LimitExceeded(f"{item.oid} would have {n_parts} parts; at most {_MAX_PARTS}")
    header = {str(number): f"{href}/parts/{number}" for number in range(1, n_parts + 1)}
    return {"href": f"{href}/complete", "header": {"chunk_size": str(part_bytes), **header}}


def _content_length(request: Request) -> int:
    header = request.headers.get("content-length")
    if header is None:
        raise LengthRequired("an object needs a Content-Length; chunked bodies are not taken")
    return int(header)  # the HTTP parser has checked that it is a number


async def _receive(hub: Hub, request: Request, link: Link, offset: int, length: int) -> None:
    append = partial(receive_part, hub, link.caller, link.oid, link.size, offset, length)
    request.state.has_unread_body = True
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        await hub.upload(link.caller, partial(append, feed), feed.wait)
        request.state.has_unread_body = feed.has_unread_body


def _check_complete(hub: Hub, caller: Caller, oid: str, size: int) -> None:
    found = landing.status(hub.registry, caller, validate_sha256(oid))
    if not found.is_complete or found.size != size:
        raise SizeMismatch(
            f"{oid} has {size} bytes, of which {found.received} of {found.size} came; send it again"
        )
