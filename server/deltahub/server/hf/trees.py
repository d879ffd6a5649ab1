"""What a revision holds: the tree, page by page, and single paths of it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse

from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.entries import EntryInfo, list_entries
from deltahub.registry.errors import EntryNotFound, InvalidRequest, LimitExceeded
from deltahub.registry.history import CommitInfo, last_changes
from deltahub.registry.paths import quoted
from deltahub.registry.repositories import load_repository
from deltahub.server.hf.door import unescaped
from deltahub.server.hf.entries import folders_of, shown_file, shown_folder
from deltahub.server.hf.revisions import revision_of
from deltahub.server.hf.xet_downloads import xet_from
from deltahub.server.hub import CallerDep, HubDep, NameDep
from deltahub.server.limits import BoundedRoute

router = APIRouter(route_class=BoundedRoute, prefix="/api/models/{namespace}/{name}")

_PAGE = 1000
_PAGE_EXPANDED = 50  # each of them may cost a walk through the history
_MOST_PATHS = 10_000


@router.get("/tree/{revision}")
@router.get("/tree/{revision}/{path:path}")
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
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> JSONResponse:
    """Files and folders below a path, in order of path."""
    most = _PAGE_EXPANDED if expand else _PAGE
    size = most if limit is None else min(limit, most)
    folder = unescaped(path).strip("/")
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        entries = [entry for entry in list_entries(session, found) if _is_below(entry.path, folder)]
        if folder and not entries:
            raise EntryNotFound(f"revision {found.commit} has no folder {quoted(folder)}")
        files, folders = _paged(entries, folder, recursive)
        paths = sorted({**files, **folders})
        part = paths[cursor : cursor + size]
        least = xet_from(hub.settings, request)
        page = _shown(session, found, part, files, folders, expand, xet_from=least)
    headers = {"X-Repo-Commit": found.commit}
    if cursor + size < len(paths):
        # By commit: a branch that moves between two pages must not tear the list.
        where = f"/api/models/{name}/tree/{found.commit}"
        below = f"/{quote(folder)}" if folder else ""
        flags = f"recursive={str(recursive).lower()}&expand={str(expand).lower()}&limit={size}"
        origin = str(request.base_url).rstrip("/")
        headers["Link"] = f'<{origin}{where}{below}?{flags}&cursor={cursor + size}>; rel="next"'
    return JSONResponse(page, headers=headers)


async def _body(request: Request) -> bytes:
    return await request.body()  # bounded by BoundedRoute


@router.post("/paths-info/{revision}")
def get_paths_info(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    body: Annotated[bytes, Depends(_body)],
) -> JSONResponse:
    """Those of the asked paths that are there. The body is a form, as clients send it."""
    form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    paths = dict.fromkeys(path.strip("/") for path in form.get("paths", []))
    if len(paths) > _MOST_PATHS:
        raise LimitExceeded(f"a request names at most {_MOST_PATHS} paths, not {len(paths)}")
    if not paths:
        raise InvalidRequest("the form names no paths: send paths=<path>, once for each")
    expand = form.get("expand", ["false"])[-1].lower() in ("true", "1")
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        entries = list_entries(session, found)
        files, folders = {entry.path: entry for entry in entries}, folders_of(entries)
        known = [path for path in paths if path in files or path in folders]
        least = xet_from(hub.settings, request)
        shown = _shown(session, found, known, files, folders, expand, xet_from=least)
        return JSONResponse(shown)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


def _paged(
    entries: list[EntryInfo], folder: str, recursive: bool
) -> tuple[dict[str, EntryInfo], dict[str, list[EntryInfo]]]:
    """Files and folders below `folder` that a listing names."""
    depth = folder.count("/") + 1 if folder else 0
    folders = {
        path: inside
        for path, inside in folders_of(entries).items()
        if _is_below(path, folder) and (recursive or path.count("/") == depth)
    }
    files = {e.path: e for e in entries if recursive or e.path.count("/") == depth}
    return files, folders


def _shown(
    session: ReadSession,
    revision: Revision,
    paths: Iterable[str],
    files: Mapping[str, EntryInfo],
    folders: Mapping[str, list[EntryInfo]],
    expand: bool,
    *,
    xet_from: int | None,
) -> list[dict[str, Any]]:
    """These files and folders; with the commits that changed them last, where that is asked."""
    inside = {
        path: [entry.path for entry in folders[path]] if path in folders else [path]
        for path in paths
    }
    changes = {}
    if expand:
        changes = last_changes(session, revision, set().union(*inside.values()))
    shown = []
    for path, below in inside.items():
        last = max((changes[one] for one in below if one in changes), key=_age, default=None)
        if path in files:
            shown.append(shown_file(files[path], last, xet_from=xet_from))
        else:
            shown.append(shown_folder(path, folders[path], last))
    return shown


def _age(change: CommitInfo) -> int:
    return change.id
