"""Shows dropped revisions, and takes them back while their grace lasts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.access.visibility import sharing_domains
from deltahub.registry.catalog import declared_base
from deltahub.registry.catalog.commit import find_commit
from deltahub.registry.catalog.lists.model_tags import move_main
from deltahub.registry.catalog.new_revision import enqueue_ingest
from deltahub.registry.catalog.refs import RefInfo, find_ref
from deltahub.registry.catalog.reserved import refuse_reserved
from deltahub.registry.db.models import File, Ref, Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tree_files import files_of
from deltahub.registry.errors import Conflict, RevisionNotFound
from deltahub.registry.names import quoted, validate_commit_id, validate_ref
from deltahub.registry.quotas.limits import check_used
from deltahub.registry.quotas.usage import measure
from deltahub.registry.registry import Registry

MAX_PAGE = 1000


@dataclass(frozen=True)
class DroppedInfo:
    """A dropped revision. by: None if a rule dropped it. until: it can be taken back before."""

    id: int
    commit: str
    title: str
    created_at: datetime
    reason: str
    dropped_at: datetime
    by: str | None
    until: datetime


def list_dropped(
    reg: Registry, caller: Caller | None, name: str, before: int | None = None, limit: int = 100
) -> list[DroppedInfo]:
    """Dropped revisions, the latest first, for those who may write. before: id of the last seen."""
    grace = timedelta(seconds=reg.settings.revision_grace_s)
    with reg.db.read() as session:
        repository = load_repository(session, caller, name, "write")
        query = select(DroppedRevision).where(DroppedRevision.repository_id == repository.id)
        if before is not None:
            query = query.where(DroppedRevision.id < before)
        query = query.order_by(DroppedRevision.id.desc()).limit(min(limit, MAX_PAGE))
        return [
            DroppedInfo(
                row.id, row.commit, row.message.partition("\n")[0], row.created_at, row.reason,
                row.dropped_at, row.dropped_by, row.dropped_at + grace,
            )
            for row in session.scalars(query)
        ]  # fmt: skip


def take_back(reg: Registry, caller: Caller | None, name: str, commit: str, branch: str) -> RefInfo:
    """Make a branch at a dropped revision, which comes back with its dropped ancestors.

    RevisionNotFound if no dropped revision has this commit id. Conflict if the branch exists, or
    if the repository has become public since: its private files are not made public in passing.
    InvalidRequest for a reserved name.
    """
    validate_ref(branch)
    validate_commit_id(commit)
    with reg.db.write() as session:
        repository = load_repository(session, caller, name, "write")
        session.refresh(repository, with_for_update=True)
        refuse_reserved(session, repository, branch)
        for kind in ("branch", "tag"):
            if find_ref(session, repository, kind, branch) is not None:
                raise Conflict(f"{name} has a {kind} {branch} already: take another name")
        since = utc_now() - timedelta(seconds=reg.settings.revision_grace_s)
        chain = _dropped_chain(session, repository, commit, since)
        if not chain:
            raise RevisionNotFound(
                f"{name} has no dropped revision {quoted(commit)}: it was never dropped, or its"
                " grace is over"
            )
        _check_domain(session, repository, name, chain)
        for dropped in reversed(chain):
            head = _insert(session, caller, repository, dropped)
        session.add(
            Ref(repository_id=repository.id, kind="branch", name=branch, revision_id=head.id)
        )
        if branch == DEFAULT_BRANCH:
            move_main(session, repository, head)
        measure(session, repository.id)
        check_used(session, reg.settings, repository.namespace_id)
        detail = {"branch": branch, "revisions": len(chain)}
        audit.append(session, caller, "revision.take_back", f"{name}@{commit}", detail)
        return RefInfo("branch", branch, head.commit)


def _dropped_chain(
    session: ReadSession, repository: Repository, commit: str, since: datetime
) -> list[DroppedRevision]:
    """The dropped revision and its ancestors up to one that is not dropped, or was long ago."""
    chain: list[DroppedRevision] = []
    wanted: str | None = commit
    while wanted is not None and find_commit(session, repository, wanted) is None:
        row = session.scalars(
            select(DroppedRevision)
            .where(
                DroppedRevision.repository_id == repository.id,
                DroppedRevision.commit == wanted,
                DroppedRevision.dropped_at >= since,
            )
            .order_by(DroppedRevision.id.desc())
            .limit(1)
        ).first()
        if row is None:
            break
        chain.append(row)
        wanted = row.parent_commit
    return chain


def _check_domain(
    session: ReadSession, repository: Repository, name: str, chain: list[DroppedRevision]
) -> None:
    domains = sharing_domains(session, repository)
    for row in chain:
        tops = select(DroppedRevision.tree_id).where(DroppedRevision.id == row.id)
        foreign = select(File.id).where(File.id.in_(files_of(tops)), File.domain_id.not_in(domains))
        if session.scalar(foreign.limit(1)) is not None:
            raise Conflict(
                f"{name} was private when {row.commit} was dropped, and is public now: push its"
                " files again"
            )


def _insert(
    session: WriteSession, caller: Caller | None, repository: Repository, dropped: DroppedRevision
) -> Revision:
    """Make a revision of a dropped one, which is deleted."""
    revision = Revision(
        repository_id=repository.id,
        commit=dropped.commit,
        parent_commit=dropped.parent_commit,
        number=dropped.number,
        message=dropped.message,
        author_id=dropped.author_id,
        created_at=dropped.created_at,
        declared_base=dropped.declared_base,
        tree_id=dropped.tree_id,
    )
    base = dropped.declared_base
    if base is not None and base != declared_base.NO_BASE:
        found = declared_base.resolve_declared(session, caller, base)
        revision.declared_base_revision_id = None if found is None else found.id
    session.add(revision)
    session.flush()
    session.execute(delete(DroppedRevision).where(DroppedRevision.id == dropped.id))
    if revision.declared_base_revision_id is not None:
        base_row = session.get_one(Revision, revision.declared_base_revision_id)
        declared_base.declare(session, repository, revision, base_row)
    enqueue_ingest(session, revision)
    return revision
