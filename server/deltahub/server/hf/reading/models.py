"""Single models, their refs and commits, and access to them."""

from html import escape
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from deltahub.registry.access.permissions import full_name, require
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.history import CommitInfo, ancestors, log
from deltahub.registry.catalog.lists.search import Listed
from deltahub.registry.catalog.refs import RefInfo, find_ref, ref_pages
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.reading.entries import utc_text
from deltahub.server.hf.reading.lists import Expand
from deltahub.server.hf.reading.model_info import (
    SIBLINGS,
    expanded,
    facts_of,
    load_rows,
    model_json,
    with_siblings,
)
from deltahub.server.hf.reading.revisions import revision_of
from deltahub.server.hub import CallerDep, HubDep, NameDep
from deltahub.server.public_url import origin_of
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import answer_in_pieces, json_with_lists
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api/models")

_MAX_PAGE: Final = 1000
_COMMITS: Final = 50
_MAX_MESSAGES: Final = 1 << 20  # bytes of messages after which a page of commits ends


@router.get("/{namespace}/{name}")
@router.get("/{namespace}/{name}/revision/{revision}")
@reads(is_long=True)
def get_model(
    name: NameDep,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: str | None = None,
    blobs: bool = False,
    expand: Expand = None,
) -> Response:
    """Show a model at a revision, by default at the branch main."""
    spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
    has_storage = expand is None or "usedStorage" in expand
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        if revision is None:
            found = find_ref(session, repository, "branch", DEFAULT_BRANCH)
        else:
            found = revision_of(request, session, repository, revision)
        # The caller may have written the name in another case.
        listed = Listed(repository, full_name(session, repository), found)
        (rows,) = load_rows(
            session, caller, [(listed, found)], spent, has_storage=has_storage, has_files=True
        )
    info = model_json(rows, facts_of(hub, rows, spent))
    if expand is None:
        del info["downloadsAllTime"]
    else:
        info = expanded(info, expand)
        if SIBLINGS not in expand:
            return JSONResponse(info)
    pieces = with_siblings(hub, info, found, with_blobs=blobs)
    return answer_in_pieces(pieces, hub.reads, client_key(request, caller))


@router.get("/{namespace}/{name}/refs")
@reads(is_long=True)
def list_refs(
    name: NameDep, request: Request, hub: HubDep, caller: CallerDep, include_prs: bool = False
) -> Response:
    """List branches and tags."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
    lists = {
        "branches": (
            _refs(page, "heads") for page in ref_pages(hub.registry, repository, "branch")
        ),
        "tags": (_refs(page, "tags") for page in ref_pages(hub.registry, repository, "tag")),
    }
    fields: dict[str, Any] = {"converts": []} | ({"pullRequests": []} if include_prs else {})
    pieces = json_with_lists(fields, lists)
    return answer_in_pieces(pieces, hub.reads, client_key(request, caller))


def _refs(page: list[RefInfo], folder: str) -> list[dict[str, str]]:
    return [
        {"name": ref.name, "ref": f"refs/{folder}/{ref.name}", "targetCommit": ref.commit}
        for ref in page
    ]


@router.get("/{namespace}/{name}/commits/{revision}")
@reads(is_long=True)
def list_commits(
    name: NameDep,
    revision: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    p: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _COMMITS,
    expand: Annotated[list[str] | None, Query(alias="expand[]")] = None,
) -> JSONResponse:
    """List the commits up to a revision, the newest first. A page of long messages ends early."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, name)
        found = revision_of(request, session, repository, revision)
        chain = ancestors(session, found)
        wanted = chain[p * limit : (p + 1) * limit]
        commits = log(session, wanted, _MAX_MESSAGES)
    shown = [
        {
            "id": commit.commit,
            "title": commit.title,
            "message": commit.body,
            "date": utc_text(commit.created_at),
            "authors": [{"user": commit.author}] if commit.author else [],
            **(_formatted(commit) if "formatted" in (expand or ()) else {}),
        }
        for commit in commits
    ]
    headers = {"X-Total-Count": str(len(chain))}
    query = [(k, v) for k, v in request.query_params.multi_items() if k not in ("p", "limit")]
    query.append(("limit", str(limit)))
    where = found.commit
    if len(commits) < len(wanted):
        where = wanted[len(commits)].commit  # its log is the rest of this one
    elif (p + 1) * limit < len(chain):
        query.append(("p", str(p + 1)))
    else:
        return JSONResponse(shown, headers=headers)
    origin = origin_of(request)
    url = f"{origin}/api/models/{name}/commits/{where}?{urlencode(query)}"
    return JSONResponse(shown, headers=headers | {"Link": f'<{url}>; rel="next"'})


def _formatted(commit: CommitInfo) -> dict[str, Any]:
    """The message as HTML, which is its text: no markup of users is taken as such."""
    return {"formatted": {"title": escape(commit.title), "message": escape(commit.body)}}


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
