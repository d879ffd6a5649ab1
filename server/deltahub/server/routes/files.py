"""Downloads of files, whole or one byte range."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import EntryInfo, find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import note_file
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.ranges import matches, requested_part

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["files"]
)

RevisionQuery = Annotated[str, Query(description="a branch, a tag or a commit")]
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "the bytes"}
}


@router.head("/files/{path:path}", response_class=Response)
def head_file(
    namespace: str,
    name: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Return the headers of get_file for the whole file, without the bytes."""
    commit, entry = find_file(request, hub, caller, f"{namespace}/{name}", revision, path)
    headers = _headers(commit, entry)
    if _is_unchanged(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(headers=headers | {"Content-Length": str(entry.file.size)})


@router.get("/files/{path:path}", response_class=Response, responses=_BYTES)
def get_file(
    namespace: str,
    name: str,
    path: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
    byte_range: Annotated[
        str | None, Header(alias="Range", description="one range: bytes=a-b, a- or -n")
    ] = None,
) -> Response:
    """Stream a file, or one byte range of it."""
    commit, entry = find_file(request, hub, caller, f"{namespace}/{name}", revision, path)
    headers = _headers(commit, entry)
    etag = headers["ETag"]
    size = entry.file.size
    if _is_unchanged(request, etag):
        return Response(status_code=304, headers=headers)
    part = requested_part(byte_range, request.headers.get("if-range"), etag, size)
    start, end = (0, size) if part is None else (part.start, part.end)
    headers["Content-Length"] = str(end - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return hub.stream(
        client_key(request, caller),
        hub.reader.stream_pieces(entry.file, start, end),
        status_code=200 if part is None else 206,
        headers=headers,
        label=f"{namespace}/{name}@{commit}/{path}",
    )


def find_file(
    request: Request, hub: Hub, caller: Caller | None, name: str, revision: str, path: str
) -> tuple[str, EntryInfo]:
    """Return (commit, entry) of a path.

    Raises RepositoryNotFound, RevisionNotFound, EntryNotFound.
    """
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = resolve_revision(session, repository, revision)
        entry = find_entry(session, found, path)
    note_file(request, name, path)
    hub.downloads.note(repository, path, client_key(request, caller))
    return found.commit, entry


def _is_unchanged(request: Request, etag: str) -> bool:
    known = request.headers.get("if-none-match")
    return known is not None and matches(known, etag)


def _headers(commit: str, entry: EntryInfo) -> dict[str, str]:
    file_name = quote(entry.path.rpartition("/")[2], safe="")
    return {
        "ETag": f'"{entry.etag}"',
        "Accept-Ranges": "bytes",
        "X-DeltaHub-Commit": commit,
        # A browser saves the file: it never runs a page that a user has uploaded.
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{file_name}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
    }
