"""The bases of a revision, as a report shows them: declared, and measured from the weights."""

from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed, full_name
from deltahub.registry.catalog.declared_base import DeclaredBase, find_declared
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.weights import has_weights
from deltahub.registry.db.models import LineageEdge, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import RevisionNotFound
from deltahub.registry.jobs import queue
from deltahub.registry.reports.stored import StoredRevision, weights_of


@dataclass(frozen=True)
class MeasuredBase:
    """A measured base. share: of the bytes of the revision's weights, the share that are tensors of
    the base or decoded from them. identical: the share that are tensors of the base.
    """

    repository: str
    commit: str
    share: float | None
    identical: float = 0.0


@dataclass(frozen=True)
class BaseReport:
    """The bases of a revision. declared: the declared base, by its current name.

    declared_status: `resolved`; `absent` if the model is unknown or the viewer may not read it;
    `no_safetensors` if the model is empty or has weights in opaque files only; `unused` if no
    weights of the revision are shared with the base or encoded against it, for example because of
    another architecture. declared_share: the same share as of a measured base; None if the base is
    not resolved or the revision is not ingested. pending_job_id: the ingest or re-planning that may
    still change this report; until it ends, no base is called unused. is_gone: the declaration
    names a revision that was dropped since; `commit` stands in its place. is_own_history: weights
    are differences from other revisions of the same repository.
    """

    declared: str | None
    declared_status: str | None
    commit: str | None
    measured: tuple[MeasuredBase, ...]
    declared_share: float | None = None
    pending_job_id: str | None = None
    is_gone: bool = False
    is_own_history: bool = False


def report_base(
    session: ReadSession, caller: Caller | None, revision: Revision, stored: StoredRevision | None
) -> BaseReport:
    """stored: None while not all of the revision is ingested."""
    status, commit, share = None, None, None
    pending = _pending_job(session, revision)
    declared = find_declared(session, caller, revision)
    if declared is not None:
        status = "absent"
        if declared.revision is not None:
            status, commit = "no_safetensors", declared.revision.commit
        if declared.revision is not None and has_weights(session, declared.revision.id):
            status = "resolved"
            if stored is not None:
                weights = weights_of(session, declared.revision)
                share = stored.derived_share(weights)
                if pending is None and not stored.uses_any(weights):
                    status = "unused"
    edges = session.scalars(
        select(LineageEdge).where(
            LineageEdge.child_id == revision.id, LineageEdge.origin == "measured"
        )
    )
    measured = []
    for edge in sorted(edges, key=lambda edge: -(edge.share or 0.0)):
        parent = session.get_one(Revision, edge.parent_id)
        repository = session.get_one(Repository, parent.repository_id)
        if allowed(session, caller, "read", repository):
            name = full_name(session, repository)
            copied = 0.0 if stored is None else stored.identical_share(weights_of(session, parent))
            measured.append(MeasuredBase(name, parent.commit, edge.share, copied))
    return BaseReport(
        declared=None if declared is None else declared.text,
        declared_status=status,
        commit=commit,
        measured=tuple(measured),
        declared_share=share,
        pending_job_id=pending,
        is_gone=declared is not None and _is_gone(session, declared),
        is_own_history=stored is not None and stored.has_bases_in_its_history(session),
    )


def _is_gone(session: ReadSession, declared: DeclaredBase) -> bool:
    """Whether the declaration names a revision that its repository has no more."""
    if declared.revision is None or not declared.at:
        return False
    repository = session.get_one(Repository, declared.revision.repository_id)
    try:
        resolve_revision(session, repository, declared.at.removeprefix("@"))
    except RevisionNotFound:
        return True
    return False


def _pending_job(session: ReadSession, revision: Revision) -> str | None:
    """The oldest active ingest or re-planning job of the revision, None if there is none."""
    return session.scalar(
        select(Job.id)
        .where(
            Job.state.in_(queue.ACTIVE),
            Job.kind.in_(("ingest", "replan")),
            Job.payload["revision_id"].as_integer() == revision.id,
        )
        .order_by(Job.created_at, Job.id)
        .limit(1)
    )
