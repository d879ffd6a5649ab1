"""Downloads of files, as `hf_hub_download` and `from_pretrained` request them."""

from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.reports import refuse_quarantined
from deltahub.registry.catalog.entries import EntryInfo, find_entry
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.errors import note_file
from deltahub.server.hf.reading.entries import blob_id, lfs_pointer
from deltahub.server.hf.reading.revisions import plain_revision, revision_of
from deltahub.server.hf.xet.downloads import xet_from, xet_headers
from deltahub.server.hub import CallerDep, Hub, HubDep, NameDep
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.ranges import matches, requested_part

router = APIRouter(route_class=BoundedRoute)

_FILE = "/{namespace}/{name}/resolve/{revision}/{path:path}"


@router.head(_FILE)
def head_file(
    name: NameDep,
    revision: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
) -> Response:
    """Return the headers of get_file for the whole file, without the bytes."""
    entry, headers = _found(request, hub, caller, name, revision, path)
    return Response(headers=headers | {"Content-Length": str(entry.file.size)})


@router.get(_FILE)
def get_file(
    name: NameDep,
    revision: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
) -> Response:
    """Stream a file, or one byte range of it."""
    entry, headers = _found(request, hub, caller, name, revision, path)
    known = request.headers.get("if-none-match")
    if known is not None and matches(known, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    size = entry.file.size
    range_header = request.headers.get("range")
    if size == 0 and range_header is not None:
        # Clients ask for the first byte to learn the size, and take 416 for a failure.
        range_header, headers["Content-Range"] = None, "bytes */0"
    part = requested_part(range_header, request.headers.get("if-range"), headers["ETag"], size)
    start, end = (0, size) if part is None else (part.start, part.end)
    headers["Content-Length"] = str(end - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return hub.stream(
        client_key(request, caller),
        hub.reader.stream_pieces(entry.file, start, end),
        status_code=200 if part is None else 206,
        headers=headers,
        label=f"{name}@{headers['X-Repo-Commit']}/{entry.path}",
    )


_RAW: Final = "/{namespace}/{name}/raw/{revision}/{path:path}"


@router.head(_RAW)
@router.get(_RAW)
def get_raw(
    name: NameDep,
    revision: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
) -> Response:
    """Send a file as git keeps it: of a large file its LFS pointer."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        entry = find_entry(session, found, unescaped(path))
    if entry.mode == "regular":
        return (head_file if request.method == "HEAD" else get_file)(
            name, revision, path, request, hub, caller
        )
    pointer = lfs_pointer(entry)
    headers = _headers(found.commit, entry.path, blob_id(entry), len(pointer))
    if_range = request.headers.get("if-range")
    part = requested_part(request.headers.get("range"), if_range, headers["ETag"], len(pointer))
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{len(pointer)}"
        pointer = pointer[part.start : part.end]
    return Response(pointer, 200 if part is None else 206, headers)


def _headers(commit: str, path: str, etag: str, size: int) -> dict[str, str]:
    file_name = quote(path.rpartition("/")[2], safe="")
    return {
        "X-Repo-Commit": commit,
        "ETag": f'"{etag}"',
        "X-Linked-ETag": f'"{etag}"',
        "X-Linked-Size": str(size),
        "Accept-Ranges": "bytes",
        # A browser saves the file: it never runs a page that a user has uploaded.
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{file_name}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
    }


def _found(
    request: Request, hub: Hub, caller: Caller | None, name: str, revision: str, path: str
) -> tuple[EntryInfo, dict[str, str]]:
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        entry = find_entry(session, found, unescaped(path))
        refuse_quarantined(session, repository, found, plain_revision(revision), entry.path)
    note_file(request, name, entry.path)
    hub.downloads.note(repository, entry.path, client_key(request, caller))
    headers = _headers(found.commit, entry.path, entry.etag, entry.file.size)
    xet_bytes = xet_from(hub.settings, request)
    if entry.mode == "lfs" and xet_bytes is not None and entry.file.size >= xet_bytes:
        headers |= xet_headers(request, name, found.commit, entry.file)
    return entry, headers
