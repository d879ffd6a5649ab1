"""Work asked for: rows written with what needs them, taken up and reported on by workers.

state: queued -> running -> done | failed | cancelled; a queued job may be cancelled at once.
Functions that take a session belong to the caller's transaction.
"""

import secrets
from collections.abc import Collection, Mapping
from typing import Any, cast

from sqlalchemy import CursorResult, select, update

from deltahub.registry.db.models import Job, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.errors import RepositoryNotFound

ACTIVE = ("queued", "running")
STATES = (*ACTIVE, "done", "failed", "cancelled")
CANCELLED = {"state": "cancelled"}
# Of a job whose repository was deleted; every job has one to begin with.
DELETED = CANCELLED | {
    "error_code": RepositoryNotFound.code,
    "error": "its repository was deleted meanwhile",
}


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


def _change(
    session: WriteSession, job_id: str, states: Collection[str], values: Mapping[str, Any]
) -> bool:
    statement = update(Job).where(Job.id == job_id, Job.state.in_(states)).values(**values)
    return cast(CursorResult[Any], session.execute(statement)).rowcount == 1


def _finish(session: WriteSession, job_id: str, values: Mapping[str, Any]) -> bool:
    return _change(session, job_id, ACTIVE, {"finished_at": utc_now(), **values})
