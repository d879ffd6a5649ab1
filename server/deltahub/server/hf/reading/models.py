"""Lists of models, single models, their refs, commits, safetensors headers and access."""

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from deltahub.registry.access.permissions import require
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.catalog import refs, search
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.history import log
from deltahub.registry.catalog.refs import find_ref, resolve_revision
from deltahub.registry.catalog.search import Listed
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.cards.facts import read_header, read_small
from deltahub.server.cards.plain_values import read_json
from deltahub.server.hf.dispatch import unescaped
from deltahub.server.hf.reading.entries import utc_text
from deltahub.server.hf.reading.model_info import list_json, load_rows, model_json
from deltahub.server.hf.reading.queries import check_expand_names, parse_query
from deltahub.server.hf.reading.revisions import revision_of
from deltahub.server.hub import CallerDep, HubDep, NameDep

router = APIRouter(route_class=BoundedRoute, prefix="/api/models")

_PAGE: Final = 100
_MAX_PAGE: Final = 1000
_MAX_EXAMINED: Final = 2000  # most models that are examined for one page of a filtered list
_COMMITS: Final = 50
_MAX_INDEX_BYTES: Final = 16 << 20

Expand = Annotated[list[str] | None, Query()]


@router.get("")
def list_models(
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    author: str | None = None,
    limit: Annotated[int, Query(ge=1)] = _PAGE,
    full: bool = False,
    card: Annotated[bool, Query(alias="cardData")] = False,
    config: bool = False,
    expand: Expand = None,
    cursor: str | None = None,
) -> JSONResponse:
    """List the models that the caller may read, the newest or the last changed first."""
    filters = parse_query(request.query_params)
    check_expand_names(expand)
    order = filters.order
    size = min(limit, _MAX_PAGE)
    page = min(size, _PAGE)
    shown: list[dict[str, Any]] = []
    n_examined, after, is_over = 0, cursor, filters.is_empty
    while len(shown) < size and n_examined < _MAX_EXAMINED and not is_over:
        with hub.registry.db.read() as session:
            batch = search.search(
                session, caller, namespace=author, words=filters.words, order=order,
                after=after, limit=page + 1,
            )  # fmt: skip
            rows = [load_rows(session, caller, listed, listed.head) for listed in batch[:page]]
        is_over = len(batch) <= page
        for found in rows:
            n_examined += 1
            after = found.listed.cursor(order)
            info = model_json(hub, found)
            if filters.matches(info):
                shown.append(list_json(info, full=full, card=card, config=config, expand=expand))
            if len(shown) == size:
                is_over = is_over and found is rows[-1]
                break
    headers = {}
    if not is_over and after is not None:
        query = [(k, v) for k, v in request.query_params.multi_items() if k != "cursor"]
        url = request.url.replace(query=urlencode([*query, ("cursor", after)]))
        headers["Link"] = f'<{url}>; rel="next"'
    return JSONResponse(shown, headers=headers)


@router.get("/{namespace}/{name}")
@router.get("/{namespace}/{name}/revision/{revision}")
def get_model(
    name: NameDep,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: str | None = None,
    blobs: bool = False,
    expand: Expand = None,
) -> JSONResponse:
    """Show a model at a revision, by default at the branch main."""
    check_expand_names(expand)
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        if revision is None:
            found = find_ref(session, repository, "branch", DEFAULT_BRANCH)
        else:
            found = revision_of(request, session, repository, revision)
        rows = load_rows(session, caller, Listed(repository, name, found), found)
    info = model_json(hub, rows, with_blobs=blobs)
    if expand is not None:
        info = {key: info.get(key) for key in ("_id", "id", *expand) if key in info}
    return JSONResponse(info)


@router.get("/{namespace}/{name}/refs")
def list_refs(
    name: NameDep, hub: HubDep, caller: CallerDep, include_prs: bool = False
) -> JSONResponse:
    """List branches and tags."""
    with hub.registry.db.read() as session:
        found = refs.list_refs(session, load_repository(session, caller, name))
    kinds: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": []}
    for ref in found:
        key, folder = ("branches", "heads") if ref.kind == "branch" else ("tags", "tags")
        kinds[key].append(
            {"name": ref.name, "ref": f"refs/{folder}/{ref.name}", "targetCommit": ref.commit}
        )
    return JSONResponse(kinds | ({"pullRequests": []} if include_prs else {}))


@router.get("/{namespace}/{name}/commits/{revision}")
def list_commits(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    p: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _COMMITS,
) -> JSONResponse:
    """List the commits up to a revision, the newest first."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        commits = list(log(session, found))
    shown = [
        {
            "id": commit.commit,
            "title": commit.title,
            "message": commit.body,
            "date": utc_text(commit.created_at),
            "authors": [{"user": commit.author}] if commit.author else [],
        }
        for commit in commits[p * limit : (p + 1) * limit]
    ]
    headers = {"X-Total-Count": str(len(commits))}
    if (p + 1) * limit < len(commits):
        origin = str(request.base_url).rstrip("/")
        where = f"/api/models/{name}/commits/{found.commit}"
        query = [(k, v) for k, v in request.query_params.multi_items() if k not in ("p", "limit")]
        query += [("p", str(p + 1)), ("limit", str(limit))]
        headers["Link"] = f'<{origin}{where}?{urlencode(query)}>; rel="next"'
    return JSONResponse(shown, headers=headers)


@router.get("/{namespace}/{name}/safetensors-metadata/{path:path}")
def get_safetensors_metadata(
    name: NameDep,
    path: str,
    hub: HubDep,
    caller: CallerDep,
    revision: str = DEFAULT_BRANCH,
) -> JSONResponse:
    """Show the index of a sharded model, and the safetensors headers of its files."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = resolve_revision(session, repository, revision)
        index_entry = find_entry(session, found, unescaped(path))
    data = read_small(hub, index_entry, _MAX_INDEX_BYTES)
    folder = index_entry.path.rpartition("/")[0]
    try:
        index = read_json(data or b"")
        shards = sorted({str(shard) for shard in index["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{quoted(index_entry.path)} is no index of shards") from error
    with hub.registry.db.read() as session:
        entries = {
            shard: find_entry(session, found, f"{folder}/{shard}" if folder else shard)
            for shard in shards
        }
    headers = {}
    for shard, entry in entries.items():
        try:
            headers[shard] = read_json(read_header(hub, entry))
        except ValueError as error:
            raise InvalidRequest(f"{quoted(entry.path)} is no safetensors file") from error
    return JSONResponse({"index": index, "headers": headers})


@router.get("/{namespace}/{name}/auth-check")
@router.get("/{namespace}/{name}/auth-check/{action}")
def check_access(
    name: NameDep, hub: HubDep, caller: CallerDep, action: str = "read"
) -> JSONResponse:
    """Answer 200 if the caller may read the model, or with action=write write to it."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        require(session, caller, "write" if action == "write" else "read", repository)
    return JSONResponse({})
