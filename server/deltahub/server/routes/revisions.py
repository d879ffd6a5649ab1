"""Revisions and commits."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from deltahub.registry.access.caller import require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.cards.declared_base import declared_base, read_base_files
from deltahub.registry.cards.describe import describe_commit
from deltahub.registry.catalog import commit
from deltahub.registry.catalog.commit import AddFile, DeleteFile, Operation
from deltahub.registry.catalog.declared_base import DeclaredBase, find_declared
from deltahub.registry.catalog.history import ancestors, author_name, ingest_states, log
from deltahub.registry.catalog.pages.entries import ListedEntry, entry_pages
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.runs.steps import NewStep
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.repositories import (
    AddIn,
    BaseOut,
    CommitIn,
    CommitOut,
    CommitPage,
    LoggedOut,
    RevisionOut,
)
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.long_answers import answer_in_pieces, json_with_lists
from deltahub.server.turns import reads

_MAX_MESSAGES: Final = 1 << 20  # bytes of messages after which a page of commits ends

router = APIRouter(
    route_class=BoundedRoute, prefix="/repositories/{namespace}/{name}", tags=["revisions"]
)


@router.post("/commits", status_code=201)
def create_commit(
    namespace: str, name: str, body: CommitIn, hub: HubDep, caller: CallerDep
) -> CommitOut:
    """Create a revision from uploaded files and move a branch to it, all or nothing."""
    full_name = f"{namespace}/{name}"
    writer = require_writer(caller)
    operations: list[Operation] = [
        AddFile(op.path, op.sha256, op.size) if isinstance(op, AddIn) else DeleteFile(op.path)
        for op in body.operations
    ]
    base = body.base
    if base is None:
        base_files = read_base_files(hub.registry, hub.reader, writer, full_name, operations)
        base = declared_base(hub.registry, hub.reader, writer, full_name, body.ref, base_files)
    step = None if body.step is None else NewStep(body.step.number, body.step.after)
    made = commit.commit(
        hub.registry, writer, full_name, body.ref, operations, body.message, body.parent, base,
        step=step,
    )  # fmt: skip
    if made.changed:
        describe_commit(hub.registry, hub.reader, full_name, made.commit)
    return CommitOut.model_validate(made)


@router.get("/commits")
@reads()
def list_commits(
    namespace: str,
    name: str,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before")] = None,
) -> CommitPage:
    """List the commits up to a revision, the newest first. A page of long messages ends early."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, cursor or revision)
        chain = ancestors(session, found)
        commits = log(session, chain[:limit], _MAX_MESSAGES)
        states = ingest_states(session, [each.id for each in commits])
    items = [
        LoggedOut(
            commit=each.commit,
            title=each.title,
            message=each.message,
            author=each.author,
            created_at=each.created_at,
            ingest=states.get(each.id),
        )
        for each in commits
    ]
    more = chain[len(commits)].commit if len(commits) < len(chain) else None
    return CommitPage(items=items, next_cursor=more)


@router.get("/revision", response_model=RevisionOut)
@reads(is_long=True)
def get_revision(
    namespace: str,
    name: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    revision: RevisionQuery = "main",
) -> Response:
    """Show a revision and its files."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, revision)
        shown = RevisionOut(
            commit=found.commit,
            parent=found.parent_commit,
            message=found.message,
            author=author_name(session, found),
            created_at=found.created_at,
            base=_base(find_declared(session, caller, found)),
            job_id=found.ingest_job_id,
            entries=[],
        )
    fields = shown.model_dump(mode="json", exclude={"entries"})
    pages = (list(map(_entry, page)) for page in entry_pages(hub.registry, found))
    pieces = json_with_lists(fields, {"entries": pages})
    return answer_in_pieces(pieces, hub.reads, client_key(request, caller))


def _base(declared: DeclaredBase | None) -> BaseOut:
    if declared is None:
        return BaseOut(declared=None, commit=None)
    # None if this caller may not read the base, although the pusher could.
    found = declared.revision
    return BaseOut(declared=declared.text, commit=None if found is None else found.commit)


def _entry(entry: ListedEntry) -> dict[str, Any]:
    # The fields of EntryOut. Models of 25,000 entries would take a second and 50 MB.
    return {
        "path": entry.path,
        "size": entry.size,
        "sha256": entry.sha256,
        "git_blob_id": entry.git_blob_id,
        "etag": entry.etag,
        "mode": entry.mode,
        "state": entry.state,
    }
