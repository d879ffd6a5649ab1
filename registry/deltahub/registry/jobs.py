"""Work asked for: rows written with what needs them, taken up and reported on by workers.

state: queued -> running -> done | failed | cancelled; a queued job may be cancelled at once.
Functions that take a session belong to the caller's transaction.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, select, update

from deltahub.registry.db.models import Job, Repository, User, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import JobNotFound, RepositoryNotFound
from deltahub.registry.paths import quoted
from deltahub.registry.permissions import Caller, allowed, full_name, require_writer
from deltahub.registry.registry import Registry

ACTIVE = ("queued", "running")
STATES = (*ACTIVE, "done", "failed", "cancelled")
CANCELLED = {"state": "cancelled"}
# Of a job whose repository was deleted; every job has one to begin with.
DELETED = CANCELLED | {
    "error_code": RepositoryNotFound.code,
    "error": "its repository was deleted meanwhile",
}


@dataclass(frozen=True)
class JobInfo:
    """A job as shown to those who may see it."""

    id: str
    kind: str
    state: str
    payload: Mapping[str, Any]
    progress: Mapping[str, Any] | None  # {"stage", "done_bytes", "total_bytes"}
    result: Mapping[str, Any] | None
    error_code: str | None
    error: str | None
    is_cancel_asked: bool
    repository: str | None
    user: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def new_id() -> str:
    return secrets.token_hex(16)


def enqueue(
    session: WriteSession,
    kind: str,
    payload: Mapping[str, Any],
    repository_id: int | None = None,
    user_id: int | None = None,
    *,
    job_id: str | None = None,
) -> str:
    """The id of a new queued job; it exists once the transaction commits.

    job_id: of new_id(), where something was to be held for the job before it exists.
    """
    job = Job(
        id=job_id or new_id(),
        kind=kind,
        payload=dict(payload),
        state="queued",
        repository_id=repository_id,
        user_id=user_id,
    )
    session.add(job)
    session.flush()
    return job.id


def next_queued(
    session: ReadSession, limit: int = 1, kinds: Collection[str] | None = None
) -> list[Job]:
    """Jobs to take up, oldest first."""
    query = select(Job).where(Job.state == "queued").order_by(Job.created_at, Job.id).limit(limit)
    if kinds is not None:
        query = query.where(Job.kind.in_(kinds))
    return list(session.scalars(query))


def running(session: ReadSession) -> list[Job]:
    """Jobs that some worker had begun, oldest first: a new worker goes on with them."""
    query = select(Job).where(Job.state == "running").order_by(Job.created_at, Job.id)
    return list(session.scalars(query))


def mark_running(session: WriteSession, job_id: str) -> bool:
    """Take a job up, or go on with it after a crash; False when it is over or cancelled."""
    values = {"state": "running", "started_at": utc_now()}
    if _change(session, job_id, ("queued",), values):
        return True
    job = session.get(Job, job_id)
    return job is not None and job.state == "running" and not job.is_cancel_asked


def report_progress(
    session: WriteSession, job_id: str, stage: str, done_bytes: int, total_bytes: int
) -> bool:
    """Show how far a running job is; False when it should stop (cancelled, or gone)."""
    progress = {"stage": stage, "done_bytes": done_bytes, "total_bytes": total_bytes}
    if not _change(session, job_id, ("running",), {"progress": progress}):
        return False
    return not is_cancel_asked(session, job_id)


def is_cancel_asked(session: ReadSession, job_id: str) -> bool:
    """True also when the job is gone."""
    asked = session.scalar(select(Job.is_cancel_asked).where(Job.id == job_id))
    return asked is not False


def mark_done(session: WriteSession, job_id: str, result: Mapping[str, Any]) -> bool:
    """Finish a running job; False when it was finished or cancelled before."""
    return _finish(session, job_id, {"state": "done", "result": dict(result)})


def mark_failed(session: WriteSession, job_id: str, code: str, message: str) -> bool:
    """Finish a job with a refusal or a fault; False when it was finished or cancelled before."""
    return _finish(session, job_id, {"state": "failed", "error_code": code, "error": message})


def mark_cancelled(session: WriteSession, job_id: str) -> bool:
    """The worker has stopped, as asked; the job says if its repository's deletion asked."""
    repository = session.scalar(select(Job.repository_id).where(Job.id == job_id))
    return _finish(session, job_id, CANCELLED if repository is not None else DELETED)


def get_job(reg: Registry, caller: Caller | None, job_id: str) -> JobInfo:
    """The job, if it is the caller's, or of a repository where they may write; JobNotFound."""
    with reg.db.read() as session:
        return _info(session, _visible(session, caller, job_id))


def cancel_job(reg: Registry, caller: Caller | None, job_id: str) -> JobInfo:
    """Cancel a queued job, ask a running one to stop; a finished one stays as it is."""
    require_writer(caller)
    with reg.db.write() as session:
        job = _visible(session, caller, job_id)
        if job.state == "queued":
            job.state, job.finished_at = "cancelled", utc_now()
        if job.state in ("cancelled", "running"):
            job.is_cancel_asked = True
        session.flush()
        return _info(session, job)


def list_jobs(
    reg: Registry,
    caller: Caller | None,
    state: str | None = None,
    repository_id: int | None = None,
    limit: int = 100,
) -> list[JobInfo]:
    """The caller's own jobs, newest first; everybody's for a superuser."""
    query = select(Job).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)
    if state is not None:
        query = query.where(Job.state == state)
    if repository_id is not None:
        query = query.where(Job.repository_id == repository_id)
    if caller is None:
        return []
    if not caller.is_superuser:
        query = query.where(Job.user_id == caller.user_id)
    with reg.db.read() as session:
        return [_info(session, job) for job in session.scalars(query)]


def _visible(session: ReadSession, caller: Caller | None, job_id: str) -> Job:
    job = session.get(Job, job_id)
    if job is None or caller is None or not _may_see(session, caller, job):
        raise JobNotFound(f"there is no job {quoted(job_id)}, or you may not see it")
    return job


def _may_see(session: ReadSession, caller: Caller, job: Job) -> bool:
    # Results name bases that only the owner's side may know, so reading alone is not enough.
    if caller.is_superuser or job.user_id == caller.user_id:
        return True
    if job.repository_id is None:
        return False
    return allowed(session, caller, "write", session.get_one(Repository, job.repository_id))


def _change(
    session: WriteSession, job_id: str, states: Collection[str], values: Mapping[str, Any]
) -> bool:
    statement = update(Job).where(Job.id == job_id, Job.state.in_(states)).values(**values)
    return cast(CursorResult[Any], session.execute(statement)).rowcount == 1


def _finish(session: WriteSession, job_id: str, values: Mapping[str, Any]) -> bool:
    return _change(session, job_id, ACTIVE, {"finished_at": utc_now(), **values})


def _info(session: ReadSession, job: Job) -> JobInfo:
    repository = (
        None if job.repository_id is None else session.get_one(Repository, job.repository_id)
    )
    user = None if job.user_id is None else session.get_one(User, job.user_id)
    return JobInfo(
        id=job.id,
        kind=job.kind,
        state=job.state,
        payload=job.payload,
        progress=job.progress,
        result=job.result,
        error_code=job.error_code,
        error=job.error,
        is_cancel_asked=job.is_cancel_asked,
        repository=None if repository is None else full_name(session, repository),
        user=None if user is None else user.name,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )
