"""The queue of jobs: the registry enqueues them, workers run them and report on them.

state: queued -> running -> done | failed | cancelled; a queued job may become cancelled directly.
Every function works in the caller's transaction.
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
# The kind of job that makes a repository private or deletes it (reencode/withdraw.py).
WITHDRAW = "withdraw"
# The end of a job whose repository was deleted. Every job begins with a repository.
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

    job_id: from new_id(), if holds for the job were made before the job.
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
    """Jobs that wait for a worker, oldest first. kinds: only of these kinds."""
    query = select(Job).where(Job.state == "queued").order_by(Job.created_at, Job.id).limit(limit)
    if kinds is not None:
        query = query.where(Job.kind.in_(kinds))
    return list(session.scalars(query))


def running(session: ReadSession) -> list[Job]:
    """Jobs in state running, oldest first. A new worker resumes them after a crash."""
    query = select(Job).where(Job.state == "running").order_by(Job.created_at, Job.id)
    return list(session.scalars(query))


def mark_running(session: WriteSession, job_id: str) -> bool:
    """Start a job, or resume it after a crash; False if it has ended or should be cancelled."""
    values = {"state": "running", "started_at": utc_now()}
    if _change(session, job_id, ("queued",), values):
        return True
    job = session.get(Job, job_id)
    return job is not None and job.state == "running" and not job.is_cancel_asked


def report_progress(
    session: WriteSession, job_id: str, stage: str, done_bytes: int, total_bytes: int
) -> bool:
    """Store the progress of a running job; False if it should stop (cancelled or deleted)."""
    progress = {"stage": stage, "done_bytes": done_bytes, "total_bytes": total_bytes}
    if not _change(session, job_id, ("running",), {"progress": progress}):
        return False
    return not is_cancel_asked(session, job_id)


def is_cancel_asked(session: ReadSession, job_id: str) -> bool:
    """Whether the job should stop; True also if the job was deleted."""
    asked = session.scalar(select(Job.is_cancel_asked).where(Job.id == job_id))
    return asked is not False


def mark_done(session: WriteSession, job_id: str, result: Mapping[str, Any]) -> bool:
    """Finish a job with a result; False if it had ended already."""
    return _finish(session, job_id, {"state": "done", "result": dict(result)})


def mark_failed(session: WriteSession, job_id: str, code: str, message: str) -> bool:
    """Finish a job with an error; False if it had ended already."""
    return _finish(session, job_id, {"state": "failed", "error_code": code, "error": message})


def mark_cancelled(session: WriteSession, job_id: str) -> bool:
    """Finish a job that was cancelled; with an error if its repository was deleted."""
    repository = session.scalar(select(Job.repository_id).where(Job.id == job_id))
    return _finish(session, job_id, CANCELLED if repository is not None else DELETED)


def _change(
    session: WriteSession, job_id: str, states: Collection[str], values: Mapping[str, Any]
) -> bool:
    statement = update(Job).where(Job.id == job_id, Job.state.in_(states)).values(**values)
    return cast(CursorResult[Any], session.execute(statement)).rowcount == 1


def _finish(session: WriteSession, job_id: str, values: Mapping[str, Any]) -> bool:
    return _change(session, job_id, ACTIVE, {"finished_at": utc_now(), **values})
