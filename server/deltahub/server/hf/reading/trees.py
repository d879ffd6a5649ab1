"""Files and folders of a revision: pages of the tree, and single paths."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse

from deltahub.registry import ReadSession, Revision
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.reports import withheld
from deltahub.registry.cards.plain_values import read_json
from deltahub.registry.catalog.entries import EntryInfo, entries_at
from deltahub.registry.catalog.history import CommitInfo, last_changes
from deltahub.registry.catalog.pages.folders import has_folder, read_folders, tree_page
from deltahub.registry.errors import EntryNotFound, InvalidRequest, LimitExceeded
from deltahub.registry.names import quoted
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.connections.inner_paths import unescaped
from deltahub.server.hf.reading.entries import file_json, folder_json
from deltahub.server.hf.reading.revisions import revision_of
from deltahub.server.hf.xet.downloads import xet_from
from deltahub.server.hub import CallerDep, HubDep, NameDep
from deltahub.server.public_url import origin_of
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}")

_PAGE = 1000
_PAGE_EXPANDED = 50  # as clients are used to
_MAX_PATHS = 10_000
_MAX_PATHS_BYTES = 1 << 20


@router.get("/tree/{revision}")
@router.get("/tree/{revision}/{path:path}")
@reads(is_long=True)
def get_tree(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    path: str = "",
    recursive: bool = False,
    expand: bool = False,
    limit: Annotated[int | None, Query(ge=1)] = None,
    cursor: str = "",
) -> JSONResponse:
    """List files and folders below a path, in order of path, a folder before its contents.

    cursor: the path after which the page begins. expand: with the commit that changed each last.
    """
    if "\0" in cursor:
        raise InvalidRequest("the cursor is wrong: take it from the link to the next page")
    max_page = _PAGE_EXPANDED if expand else _PAGE
    size = max_page if limit is None else min(limit, max_page)
    folder = unescaped(path).strip("/")
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        keys, has_more = tree_page(session, found, folder, cursor, size, is_recursive=recursive)
        if folder and not keys and not has_folder(session, found, folder):
            raise EntryNotFound(f"revision {found.commit} has no folder {quoted(folder)}")
        files = entries_at(session, found, [key for key in keys if not key.endswith("/")])
        paths = [key.rstrip("/") for key in keys]
        xet_bytes = xet_from(hub.settings, request)
        page = _shown(session, found, paths, files, expand=expand, xet_from=xet_bytes)
    headers = {"X-Repo-Commit": found.commit}
    if has_more:
        # The link names the commit: the branch may move between two pages.
        where = f"/api/models/{name}/tree/{found.commit}"
        below = f"/{quote(folder)}" if folder else ""
        flags = f"recursive={str(recursive).lower()}&expand={str(expand).lower()}&limit={size}"
        origin = origin_of(request)
        after = quote(keys[-1], safe="")
        headers["Link"] = f'<{origin}{where}{below}?{flags}&cursor={after}>; rel="next"'
    return JSONResponse(page, headers=headers)


async def _body(request: Request) -> bytes:
    return await request.body()  # bounded by BoundedRoute


@router.post("/paths-info/{revision}")
@reads(is_long=True)
def get_paths_info(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    body: Annotated[bytes, Depends(_body)],
) -> JSONResponse:
    """List those of the requested paths that exist.

    The body is a form, as Python clients send it, or JSON, as those in JavaScript do.
    """
    requested, expand = _asked_paths(body)
    # No path contains a NUL, and not every database accepts one in a query.
    paths = dict.fromkeys(path.strip("/") for path in requested if "\0" not in path)
    if len(paths) > _MAX_PATHS or len(body) > _MAX_PATHS_BYTES:
        raise LimitExceeded(
            f"a request names at most {_MAX_PATHS} paths in {_MAX_PATHS_BYTES} bytes, not"
            f" {len(paths)} in {len(body)}: ask in several"
        )
    if not requested:
        raise InvalidRequest(
            "the body names no paths: send the form paths=<path>, once for each, or the JSON"
            ' {"paths": [...]}'
        )
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        files = entries_at(session, found, paths)
        xet_bytes = xet_from(hub.settings, request)
        shown = _shown(session, found, paths, files, expand=expand, xet_from=xet_bytes)
    return JSONResponse(shown)


def _asked_paths(body: bytes) -> tuple[list[str], bool]:
    """(the paths of a body, whether it asks for their last commits). Raises InvalidRequest."""
    if not body.lstrip().startswith(b"{"):
        form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        return form.get("paths", []), form.get("expand", ["false"])[-1].lower() in ("true", "1")
    try:
        sent = read_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not the JSON that it seems to be: {error}") from error
    paths = sent.get("paths", [])
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidRequest('paths are a list of texts: {"paths": ["config.json"]}')
    return paths, sent.get("expand") is True


def _shown(
    session: ReadSession,
    revision: Revision,
    paths: Collection[str],
    files: Mapping[str, EntryInfo],
    *,
    expand: bool,
    xet_from: int | None,
) -> list[dict[str, Any]]:
    """The JSON of the paths that exist: those in files, and folders of the revision.

    expand: with the commits that changed them last.
    """
    asked = [path for path in paths if path not in files]
    folders = read_folders(session, revision, asked) if asked else {}
    commits: Mapping[str, CommitInfo] = {}
    if expand:
        changes = {path: entry.changed for path, entry in files.items()}
        changes |= {path: folder.changed for path, folder in folders.items()}
        commits = last_changes(session, revision, changes)
    hidden = withheld(session, revision)
    shown = []
    for path in paths:
        if path in files:
            by_xet = None if path in hidden else xet_from
            shown.append(file_json(files[path], commits.get(path), xet_from=by_xet))
        elif path in folders:
            shown.append(folder_json(path, folders[path].hex_id, commits.get(path)))
    return shown
