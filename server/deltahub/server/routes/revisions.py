"""Revisions and commits."""

from fastapi import APIRouter

from deltahub.registry.access.caller import require_writer
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog import commit
from deltahub.registry.catalog.commit import AddFile, DeleteFile, Operation
from deltahub.registry.catalog.declared_base import DeclaredBase, find_declared
from deltahub.registry.catalog.entries import EntryInfo, list_entries
from deltahub.registry.catalog.history import author_name
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.cards.declared_base import declared_base, read_base_files
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.files import RevisionQuery
from deltahub.server.schemas.repositories import (
    AddIn,
    BaseOut,
    CommitIn,
    CommitOut,
    EntryOut,
    RevisionOut,
)

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
        base_files = read_base_files(hub, writer, full_name, operations)
        base = declared_base(hub, writer, full_name, body.ref, base_files)
    made = commit.commit(
        hub.registry, writer, full_name, body.ref, operations, body.message, body.parent, base
    )
    return CommitOut.model_validate(made)


@router.get("/revision")
def get_revision(
    namespace: str, name: str, hub: HubDep, caller: CallerDep, revision: RevisionQuery = "main"
) -> RevisionOut:
    """Show a revision and its files."""
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, f"{namespace}/{name}")
        found = resolve_revision(session, repository, revision)
        return RevisionOut(
            commit=found.commit,
            parent=found.parent_commit,
            message=found.message,
            author=author_name(session, found),
            created_at=found.created_at,
            base=_base(find_declared(session, caller, found)),
            job_id=found.ingest_job_id,
            entries=[_entry(entry) for entry in list_entries(session, found)],
        )


def _base(declared: DeclaredBase | None) -> BaseOut:
    if declared is None:
        return BaseOut(declared=None, commit=None)
    # None if this caller may not read the base, although the pusher could.
    found = declared.revision
    return BaseOut(declared=declared.text, commit=None if found is None else found.commit)


def _entry(entry: EntryInfo) -> EntryOut:
    return EntryOut(
        path=entry.path,
        size=entry.file.size,
        sha256=entry.file.sha256,
        git_blob_id=entry.file.git_blob_id,
        etag=entry.etag,
        mode=entry.mode,
        state=entry.file.state,
    )
