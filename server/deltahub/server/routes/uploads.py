"""Uploads of any file, whole or in parts; an upload resumes where the hub's copy ends."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.errors import InvalidRequest, LimitExceeded, SizeMismatch
from deltahub.registry.names import LFS_BYTES
from deltahub.registry.uploads import landing
from deltahub.registry.uploads.discard import drop_upload
from deltahub.registry.uploads.landing import LandingStatus
from deltahub.registry.uploads.small_files import SmallFiles
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import LengthRequired
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.transfer import SmallUploadsOut, UploadOut
from deltahub.server.streaming.bodies import BodyFeed
from deltahub.server.streaming.ranges import parse_content_range

router = APIRouter(route_class=BoundedRoute, prefix="/uploads", tags=["uploads"])

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


# Bytes that give the size of a file in a body of several.
_SIZE_BYTES: Final = 4


@router.post("", status_code=201, openapi_extra=_BODY)
@streams_body
async def put_small_uploads(request: Request, hub: HubDep, caller: CallerDep) -> SmallUploadsOut:
    """Send several small files: of each its size, as 4 bytes with the lowest first, and its bytes.

    Thousands of small files take a fraction of the time that a request for each would take. If the
    connection breaks, some of them may have come: send all of them again.
    """
    request.state.has_unread_body = True
    writer = require_writer(caller)
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        receive = partial(_receive_small, hub, writer, feed.blocks)
        found = await hub.upload(writer, receive, feed.wait)
        request.state.has_unread_body = feed.has_unread_body
    return SmallUploadsOut(sha256=found)


def _receive_small(hub: Hub, caller: Caller, body: Callable[[], Iterator[bytes]]) -> list[str]:
    """The SHA-256 of each file."""
    most = hub.registry.settings.max_operations
    files = SmallFiles(hub.registry, caller)
    found: list[str] = []
    for data in _small_files(body()):
        cancellation.check()
        if len(found) >= most:
            raise LimitExceeded(f"a request has at most {most} small files")
        found.append(files.add(data))
    files.flush()
    return found


def _small_files(blocks: Iterator[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for block in blocks:
        buffer += block
        start = 0
        while len(buffer) >= start + _SIZE_BYTES:
            size = int.from_bytes(buffer[start : start + _SIZE_BYTES], "little")
            if size >= LFS_BYTES:
                raise LimitExceeded(
                    f"a small file has less than {LFS_BYTES} bytes, not {size}: PUT it by itself"
                )
            end = start + _SIZE_BYTES + size
            if len(buffer) < end:
                break
            yield bytes(buffer[start + _SIZE_BYTES : end])
            start = end
        del buffer[:start]
    if buffer:
        raise InvalidRequest("the body ends within a small file, or within its size")


@router.head("/{sha256}", response_class=Response)
def head_upload(sha256: str, hub: HubDep, caller: CallerDep) -> Response:
    """Show how much of the caller's upload is here: Upload-Offset, -Length and -Complete."""
    found = landing.status(hub.registry, caller, sha256)
    headers = {
        "Upload-Offset": str(found.received),
        "Upload-Length": str(found.size),
        "Upload-Complete": "1" if found.is_complete else "0",
        "Cache-Control": "no-store",
    }
    return Response(headers=headers)


@router.delete("/{sha256}", status_code=204)
def delete_upload(sha256: str, hub: HubDep, caller: CallerDep) -> None:
    """Drop an upload of the caller, complete or not, that no commit uses."""
    drop_upload(hub.registry, caller, sha256)


@router.put(
    "/{sha256}",
    status_code=201,
    openapi_extra=_BODY,
    responses={
        200: {"model": UploadOut, "description": "the hub had it already"},
        202: {"model": UploadOut, "description": "this part is stored, others are missing"},
    },
)
@streams_body
async def put_upload(
    sha256: str,
    request: Request,
    response: Response,
    hub: HubDep,
    caller: CallerDep,
    content_range: Annotated[
        str | None,
        Header(
            description="bytes a-b/total, for a part that begins at byte a; bytes */total with an"
            " empty body, if the hub has all bytes and has not completed the upload"
        ),
    ] = None,
) -> UploadOut:
    """Send a file, or with Content-Range its next part."""
    request.state.has_unread_body = True
    length = _content_length(request)
    offset, total = _place(content_range, length)
    async with BodyFeed(request, hub.settings.idle_s) as feed:
        receive = partial(
            landing.receive,
            hub.registry,
            caller,
            sha256,
            total,
            offset,
            feed.blocks(),
            length=length,
        )
        try:
            found = await hub.upload(caller, receive, feed.wait)
        finally:
            request.state.has_unread_body = feed.has_unread_body and length > 0
    if feed.has_unread_body and length > 0:
        response.headers["Connection"] = "close"
    response.status_code = _status(found, feed.is_started)
    return UploadOut(
        sha256=found.sha256,
        size=found.size,
        received=found.received,
        complete=found.is_complete,
    )


def _status(found: LandingStatus, has_read: bool) -> int:
    if not found.is_complete:
        return 202
    return 201 if has_read else 200


# The hub may have all bytes of an upload that it did not complete, because it was killed between
# the last byte and the row. A range cannot say "no bytes", so such a part names the size alone.
_NOTHING_LEFT: Final = re.compile(r"bytes \*/([0-9]{1,18})")


def _content_length(request: Request) -> int:
    header = request.headers.get("content-length")
    if header is None:
        raise LengthRequired("an upload needs a Content-Length; chunked bodies are not taken")
    return int(header)  # the HTTP parser has checked that it is a number


def _place(content_range: str | None, length: int) -> tuple[int, int]:
    """(offset, size of the whole file) that a request announces, in bytes."""
    if content_range is None:
        return 0, length
    place = parse_content_range(content_range)
    if place is None and (match := _NOTHING_LEFT.fullmatch(content_range.strip())):
        place = int(match[1]), int(match[1]), int(match[1])
    if place is None:
        raise InvalidRequest(
            "Content-Range must be `bytes <first>-<last>/<size of the file>`, or `bytes */<size>`"
            " with an empty body when the hub has all bytes"
        )
    first, end, total = place
    if end - first != length:
        raise SizeMismatch(f"Content-Range announces {end - first} bytes, Content-Length {length}")
    return first, total
