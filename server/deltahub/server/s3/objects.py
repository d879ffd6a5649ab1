"""Objects: the bytes of a file, whole or in part, and what is known of them."""

import base64
from datetime import datetime
from email.utils import format_datetime, parsedate_to_datetime

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.adapters.reports import refuse_quarantined
from deltahub.registry.catalog.entries import EntryInfo, find_entry
from deltahub.registry.catalog.objects.keys import Folder, find_bucket, find_folder
from deltahub.registry.catalog.objects.lists import changed_at
from deltahub.registry.errors import EntryNotFound, InvalidName, NotFound
from deltahub.registry.names import quoted
from deltahub.server.body_limits import BoundedRoute, streams_body
from deltahub.server.errors import note_file
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.s3.buckets import refuse_absent
from deltahub.server.s3.refusals import S3Refusal
from deltahub.server.streaming.bodies import DISCARDED_BYTES, discard_body
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.ranges import matches, requested_part

router = APIRouter(route_class=BoundedRoute)

_OBJECT = "/{bucket}/{key:path}"


@router.head(_OBJECT)
@router.get(_OBJECT)
def get_object(bucket: str, key: str, request: Request, hub: HubDep, caller: CallerDep) -> Response:
    """Stream an object, or one byte range of it; of HEAD, the headers alone."""
    refuse_absent(request)
    folder, entry, headers = _found(request, hub, caller, bucket, key)
    etag, size = headers["ETag"], entry.file.size
    answer = _unless_conditions_hold(request, headers)
    if answer is not None:
        return answer
    sent_range = request.headers.get("range")
    part = requested_part(sent_range, request.headers.get("if-range"), etag, size)
    start, end = (0, size) if part is None else (part.start, part.end)
    headers["Content-Length"] = str(end - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    elif request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        digest = base64.b64encode(bytes.fromhex(entry.sha256)).decode()
        headers |= {"x-amz-checksum-sha256": digest, "x-amz-checksum-type": "FULL_OBJECT"}
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return hub.stream(
        client_key(request, caller),
        hub.reader.stream_pieces(entry.file, start, end),
        status_code=status,
        headers=headers,
        label=f"s3://{bucket}/{folder.prefix}{entry.path}@{folder.revision.commit}",
    )


@router.api_route("/", methods=["POST", "PUT", "DELETE", "PATCH"])
@router.api_route("/{bucket}", methods=["POST", "PUT", "DELETE", "PATCH"])
@router.api_route(_OBJECT, methods=["POST", "PUT", "DELETE", "PATCH"])
@streams_body
async def refuse_writing(request: Request, hub: HubDep) -> Response:
    """Say how models are written. A small body is read, so that its sender reads the answer."""
    announced = request.headers.get("content-length")
    if announced is not None and int(announced) <= DISCARDED_BYTES:
        await discard_body(request, DISCARDED_BYTES, hub.settings.idle_s)
        request.state.has_unread_body = False
    raise S3Refusal(
        "MethodNotAllowed",
        "nothing is written by S3 here: push models by `deltahub push`, or upload them with a"
        " Hugging Face client (HF_ENDPOINT)",
        {"Allow": "GET, HEAD"},
    )


def _found(
    request: Request, hub: Hub, caller: Caller | None, bucket: str, key: str
) -> tuple[Folder, EntryInfo, dict[str, str]]:
    if request.query_params.get("versionId", "null") != "null":
        raise S3Refusal(
            "NoSuchVersion",
            "objects have no versions here: name@REVISION/path is a file of another",
        )
    if request.query_params.get("partNumber", "1") != "1":
        raise S3Refusal("InvalidRange", "every object has one part here: ask for a range of it")
    with hub.registry.db.read() as session:
        try:
            folder = find_folder(session, caller, bucket, key)
            path = key.removeprefix(folder.prefix)
            if path == key or not path:
                raise EntryNotFound(f"{quoted(key)} is no file: its folder is {folder.prefix!r}")
            entry = find_entry(session, folder.revision, path)
        except (NotFound, InvalidName):
            find_bucket(session, caller, bucket)
            raise
        refuse_quarantined(session, folder.repository, folder.revision, folder.asked, entry.path)
        date = changed_at(session, folder.revision, entry.changed)
    note_file(request, f"{bucket}/{folder.repository.name}", entry.path)
    hub.downloads.note(folder.repository, entry.path, client_key(request, caller))
    headers = {
        "ETag": f'"{entry.etag}"',
        "Last-Modified": format_datetime(date, usegmt=True),
        "Accept-Ranges": "bytes",
        # A browser saves the file: it never runs a page that a user has uploaded.
        "Content-Type": "application/octet-stream",
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "x-amz-meta-commit": folder.revision.commit,
        "x-amz-meta-sha256": entry.sha256,
    }
    return folder, entry, headers


def _unless_conditions_hold(request: Request, headers: dict[str, str]) -> Response | None:
    """Return the answer to a request whose conditions do not hold (RFC 9110, section 13.2.2)."""
    etag, asked = headers["ETag"], request.headers
    changed = parsedate_to_datetime(headers["Last-Modified"])
    if "if-match" in asked:
        is_right = matches(asked["if-match"], etag)
    else:
        since = _date(asked.get("if-unmodified-since"))
        is_right = since is None or changed <= since
    if not is_right:
        raise S3Refusal("PreconditionFailed", f"the object is another one now: its ETag is {etag}")
    if "if-none-match" in asked:
        is_known = matches(asked["if-none-match"], etag)
    else:
        since = _date(asked.get("if-modified-since"))
        is_known = since is not None and changed <= since
    return Response(status_code=304, headers=headers) if is_known else None


def _date(header: str | None) -> datetime | None:
    if header is None:
        return None
    try:
        found = parsedate_to_datetime(header)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
