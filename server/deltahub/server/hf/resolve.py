"""Downloads of files, as `hf_hub_download` and `from_pretrained` request them."""

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
from deltahub.server.hf.reading.revisions import revision_of
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


def _found(
    request: Request, hub: Hub, caller: Caller | None, name: str, revision: str, path: str
) -> tuple[EntryInfo, dict[str, str]]:
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        entry = find_entry(session, found, unescaped(path))
        refuse_quarantined(session, repository, found, unescaped(revision), entry.path)
    note_file(request, name, entry.path)
    hub.downloads.note(repository, entry.path, client_key(request, caller))
    file_name = quote(entry.path.rpartition("/")[2], safe="")
    headers = {
        "X-Repo-Commit": found.commit,
        "ETag": f'"{entry.etag}"',
        "X-Linked-ETag": f'"{entry.etag}"',
        "X-Linked-Size": str(entry.file.size),
        "Accept-Ranges": "bytes",
        # A browser saves the file: it never runs a page that a user has uploaded.
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{file_name}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
    }
    xet_bytes = xet_from(hub.settings, request)
    if entry.mode == "lfs" and xet_bytes is not None and entry.file.size >= xet_bytes:
        headers |= xet_headers(request, name, found.commit, entry.file)
    return entry, headers
