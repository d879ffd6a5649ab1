"""Jobs that people ask for: checked when they are asked for, and again when they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func, select, update

from deltahub.registry.access import audit
from deltahub.registry.access.caller import Caller, require_writer
from deltahub.registry.access.permissions import full_name, require
from deltahub.registry.access.repositories import domain_of, load_repository
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.repositories import free_namespace
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Repository, Revision, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    JobNotFound,
    LimitExceeded,
    RevisionNotFound,
)
from deltahub.registry.jobs import queue, requests
from deltahub.registry.jobs.requests import JobInfo
from deltahub.registry.registry import Registry
from deltahub.registry.results.known import Check, KnownModel
from deltahub.registry.settings import Settings

# Among a user's own jobs. A day is longer than the delay of any job.
PRIORITIES: Final = {"high": timedelta(days=-1), "normal": timedelta(0), "low": timedelta(days=1)}
# Unfinished jobs of one user that compute.
MAX_UNFINISHED: Final = 100


@dataclass(frozen=True)
class Wish:
    """What a user asks for.

    arguments: of this kind, as plain JSON, already checked. name: the new repository, None if the
    job makes none. inputs: `namespace/name[@revision]` of the models that the job reads. private:
    None for "if an input is". only_reads: the job stores no part of its inputs, so that it may read
    private ones of several namespaces. check: of the kind, refuses what is known to end badly.
    """

    kind: str
    arguments: Mapping[str, Any]
    name: str | None
    inputs: Sequence[str]
    private: bool | None = None
    only_reads: bool = False
    check: Check | None = None


@dataclass(frozen=True)
class Granted:
    """A wish, as its user may have it now.

    revisions: the rows of the inputs, in their order, fixed when the job was asked for. caller:
    acts with the rights that the user has now. domain_id: where the result is stored.
    """

    caller: Caller
    arguments: Mapping[str, Any]
    revisions: Sequence[int]
    is_private: bool
    domain_id: int


@retried
def ask(
    reg: Registry,
    caller: Caller | None,
    wish: Wish,
    *,
    priority: str = "normal",
    idempotency_key: str | None = None,
) -> JobInfo:
    """Enqueue the job that the user asks for; the same job again for the same idempotency_key.

    The inputs' revisions are fixed now. RepositoryNotFound and RevisionNotFound for an input that
    the caller may not read, RepositoryExists, Forbidden, InvalidRequest; Conflict for a key that
    the caller has used for something else; LimitExceeded for too many unfinished jobs; the errors
    of the wish's check.
    """
    user = require_writer(caller)
    _check_inputs(reg, user, wish, idempotency_key)
    with reg.db.write_beside() as session:
        # Serializes the user's requests: keys and the number of jobs are checked, then written.
        session.get(User, user.user_id, with_for_update=True)
        known = _known(session, user, wish, idempotency_key)
        if known is None:
            revisions = [_pinned(session, user, each) for each in wish.inputs]
            kept = (wish.name, wish.private, wish.only_reads)
            is_private, _ = _permit(session, reg.settings, user, revisions, kept)
            _check_number(session, user)
            known = _enqueue(session, user, wish, (revisions, is_private), priority)
            session.get_one(Job, known).idempotency_key = idempotency_key
            audit.append(
                session, user, "job.ask", wish.name or wish.kind, {"job": known, "kind": wish.kind}
            )
    return requests.get_job(reg, user, known)


@retried
def granted(reg: Registry, job_id: str) -> Granted:
    """What the job may do now. The errors of `ask`; JobNotFound if it was deleted."""
    with reg.db.write_beside() as session:
        return granted_in(session, reg.settings, job_id)


def granted_in(session: WriteSession, settings: Settings, job_id: str) -> Granted:
    """Do the same as granted inside the caller's transaction."""
    job = session.get(Job, job_id)
    if job is None:
        raise JobNotFound(f"the job {job_id} was deleted")
    payload = job.payload
    user = None if job.user_id is None else session.get(User, job.user_id)
    if user is None:
        raise Forbidden("the user who asked for this job was deleted")
    caller = Caller(user.id, user.name, user.is_admin, payload["scope"])
    rows = payload["revisions"]
    # Jobs that an older hub was asked for do not say how their inputs were named.
    names = payload.get("inputs") or ["a model"] * len(rows)
    revisions = [_found(session, *each) for each in zip(rows, names, strict=True)]
    # After it has published, the job's repository exists, and is its own.
    name = None if job.repository_id is not None else payload["name"]
    kept = (name, payload["private"], payload.get("only_reads", False))
    is_private, domain_id = _permit(session, settings, caller, revisions, kept)
    if job.repository_id is not None:
        own = session.get_one(Repository, job.repository_id)
        is_private, domain_id = own.is_private, own.domain_id
    return Granted(caller, payload["arguments"], rows, is_private, domain_id)


def readable_revision(reg: Registry, caller: Caller, text: str) -> int:
    """The row of a model that a job finds by itself, for example because an input names it.

    text: `namespace/name[@revision]`. RepositoryNotFound and RevisionNotFound if the caller may not
    read it.
    """
    with reg.db.read() as session:
        return _pinned(session, caller, text).id


def retry(reg: Registry, caller: Caller | None, job_id: str) -> JobInfo:
    """Queue a job again that failed or was cancelled, from its beginning.

    JobNotFound; InvalidRequest for a job that nobody asked for; Conflict for one that is not over,
    or is done.
    """
    user = require_writer(caller)
    with reg.db.write() as session:
        job = requests.visible_job(session, user, job_id)
        if job.lane not in queue.ASKED:
            raise InvalidRequest(
                f"the job {job_id} stores what was pushed: push the same files again to repeat it"
            )
        if job.state not in ("failed", "cancelled"):
            raise Conflict(f"the job {job_id} is {job.state}; only a job that did not end well can"
                           " be retried")  # fmt: skip
        if job.user_id != user.user_id and not user.is_superuser:
            raise Forbidden(f"{user.name} did not ask for the job {job_id}: ask for one like it")
        if job.payload["scope"] == "admin" and user.scope != "admin":
            raise Forbidden(f"the job {job_id} was asked for with a token of scope admin")
        session.get(User, user.user_id, with_for_update=True)
        _check_number(session, user)
        # What an upgrade made before it was put back is deleted; this result is asked for anew.
        put_back = update(UpgradedAdapter).where(
            UpgradedAdapter.job_id == job_id, UpgradedAdapter.state == "put_back"
        )
        session.execute(put_back.values(job_id=None))
        queue.queue_again(session, job)
        audit.append(session, user, "job.retry", job.kind, {"job": job_id})
    return requests.get_job(reg, user, job_id)


def _check_inputs(reg: Registry, user: Caller, wish: Wish, key: str | None) -> None:
    """Refuse what is known to end badly. No transaction that writes is open while it is read."""
    if wish.check is None:
        return
    with reg.db.read() as session:
        if _known(session, user, wish, key) is not None:
            return  # nobody is refused the job that the same request has made
        found = [_pinned(session, user, each) for each in wish.inputs]
        models = [KnownModel.load(session, reg, user, each) for each in found]
    wish.check(models)


def _known(session: ReadSession, user: Caller, wish: Wish, key: str | None) -> str | None:
    if key is None:
        return None
    query = select(Job).where(Job.user_id == user.user_id, Job.idempotency_key == key)
    job = session.scalar(query)
    if job is None:
        return None
    if (job.kind, job.payload["arguments"]) != (wish.kind, dict(wish.arguments)):
        raise Conflict(
            f"the idempotency key {key!r} belongs to the job {job.id}, which has other arguments"
        )
    return job.id


def _pinned(session: ReadSession, user: Caller, text: str) -> Revision:
    name, _, revision = text.partition("@")
    repository = load_repository(session, user, name)
    return resolve_revision(session, repository, revision or "main")


def _found(session: ReadSession, row: int, name: str) -> Revision:
    revision = session.get(Revision, row)
    if revision is None:
        raise RevisionNotFound(
            f"{name}, which the job reads, was deleted meanwhile: ask for a job without it"
        )
    return revision


def _permit(
    session: WriteSession,
    settings: Settings,
    user: Caller,
    revisions: Sequence[Revision],
    kept: tuple[str | None, bool | None, bool],
) -> tuple[bool, int]:
    """(whether the result is private, its domain) if the user may have it.

    kept: name, private and only_reads, as in Wish.
    """
    name, private, only_reads = kept
    inputs = [session.get_one(Repository, each.repository_id) for each in revisions]
    for repository in inputs:
        require(session, user, "read", repository)
    hidden = [repository for repository in inputs if repository.is_private]
    is_private = bool(hidden) if private is None else private
    if hidden and not is_private:
        raise InvalidRequest(
            f"{full_name(session, hidden[0])} is private, and a public result would tell of it:"
            " let the result be private"
        )
    if name is None:
        # Nothing is published. What the job stores for a while lies where its inputs lie.
        domains = {repository.domain_id for repository in hidden or inputs[:1]}
        if len(domains) > 1 and not only_reads:
            raise InvalidRequest("private inputs of two namespaces are never read by one job")
        return is_private, min(domains)
    namespace = free_namespace(session, settings, user, name)
    for repository in hidden:
        if repository.namespace_id != namespace.id:
            raise InvalidRequest(
                f"{full_name(session, repository)} is private, and private data stays in its"
                f" namespace: choose a name there, not {name}"
            )
    return is_private, domain_of(session, namespace.id, private=is_private).id


def _check_number(session: ReadSession, user: Caller) -> None:
    query = select(func.count()).where(
        Job.user_id == user.user_id, Job.lane.in_(queue.ASKED), Job.state.in_(queue.ACTIVE)
    )
    if (session.scalar(query) or 0) >= MAX_UNFINISHED:
        raise LimitExceeded(
            f"{user.name} has {MAX_UNFINISHED} unfinished jobs: wait for one, or cancel one"
        )


def _enqueue(
    session: WriteSession,
    user: Caller,
    wish: Wish,
    found: tuple[Sequence[Revision], bool],
    priority: str,
) -> str:
    """found: the inputs, and whether the result is private: both are fixed now."""
    revisions, is_private = found
    if priority not in PRIORITIES:
        raise InvalidRequest(f"{priority!r} is no priority: one of {', '.join(PRIORITIES)}")
    rows = [revision.id for revision in revisions]
    files = select(Entry.file_id).where(Entry.revision_id.in_(rows))
    size = session.scalar(select(total(File.size)).where(File.id.in_(files))) or 0
    payload = {
        "name": wish.name,
        "private": is_private,
        "only_reads": wish.only_reads,
        "arguments": dict(wish.arguments),
        "revisions": rows,
        "inputs": list(wish.inputs),
        "scope": user.scope,
        "priority": priority,
    }
    needs_gpu = str(wish.arguments.get("device", "")).startswith("cuda")
    lane = queue.GPU if needs_gpu else queue.COMPUTE
    job_id = queue.enqueue(
        session, wish.kind, payload, None, user.user_id, size_bytes=size, lane=lane
    )
    job = session.get_one(Job, job_id)
    job.due_at = (job.due_at or utc_now()) + PRIORITIES[priority]
    return job_id
