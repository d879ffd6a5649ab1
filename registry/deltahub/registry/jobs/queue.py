"""The queue of jobs: the registry enqueues them, workers run them and report on them.

state: queued -> running -> done | failed | cancelled; a queued job may become cancelled directly.
A running job becomes queued again when it makes room for another job between two steps, and when it
has to be repeated because of an error that passes by itself. Every function works in the caller's
transaction.

Which worker a job belongs to: owners.py.
"""

import secrets
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, func, literal, select, update

from deltahub.registry.db.columns import UtcDateTime
from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import ReadSession, WriteSession, note_job_change
from deltahub.registry.db.tables.jobs import Job, JobLine
from deltahub.registry.errors import RepositoryNotFound
from deltahub.registry.jobs import order

ACTIVE = ("queued", "running")
STATES = (*ACTIVE, "done", "failed", "cancelled")
CANCELLED = {"state": "cancelled", "error_code": None, "error": None}
# The kind of job that makes a repository private or deletes it (reencode/withdraw.py).
WITHDRAW = "withdraw"
# Lanes: jobs of one do not wait for jobs of another. Jobs that people ask for compute, some of them
# on a GPU; all others store what was pushed.
STORE, COMPUTE, GPU = "store", "compute", "gpu"
ASKED = (COMPUTE, GPU)
# What people call the lanes: a worker may run the jobs of some of them.
QUEUES = {"io": STORE, "cpu": COMPUTE, "gpu": GPU}
# Longest log of a job, in lines, and its longest line, in characters.
MAX_LINES = 1000
MAX_LINE = 2000
# The kind of job that proves stored bytes (maintenance/scrub/schedule.py). It has no repository.
SCRUB = order.SCRUB
# The end of a job whose repository was deleted. Every job but SCRUB and those in the lanes ASKED
# begins with a repository.
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
    size_bytes: int = 0,
    job_id: str | None = None,
    lane: str = STORE,
) -> str:
    """The id of a new queued job; it exists once the transaction commits.

    size_bytes: how much the job has to read, which decides when its turn comes. job_id: from
    new_id(), if holds for the job were made before the job.
    """
    now = utc_now()
    job = Job(
        id=job_id or new_id(),
        kind=kind,
        payload=dict(payload),
        state="queued",
        repository_id=repository_id,
        user_id=user_id,
        size_bytes=size_bytes,
        lane=lane,
        created_at=now,
        due_at=order.due_at(now, kind, size_bytes),
    )
    session.add(job)
    session.flush()
    note_job_change(session)
    return job.id


def next_queued(
    session: ReadSession,
    limit: int = 1,
    kinds: Collection[str] | None = None,
    lane: str | None = None,
    worker_id: str | None = None,
) -> list[Job]:
    """Jobs that this worker may run now, in the order in which workers take them.

    kinds, lane: only these.
    """
    ready = order.ready_jobs(utc_now(), kinds, lane, worker_id)
    return list(session.scalars(ready.limit(limit)))


def take_next(
    session: WriteSession, lane: str | None = None, worker_id: str | None = None
) -> Job | None:
    """The job whose turn it is, now in state running; None if no job may run now.

    worker_id: the worker that takes it. A job that makes room goes on in its own worker alone.
    Several workers may take jobs at once: each skips those that another one is taking.
    """
    ready = order.ready_jobs(utc_now(), lane=lane, worker_id=worker_id).limit(1)
    job = session.scalar(ready.with_for_update(of=Job, skip_locked=True))
    if job is None:
        return None
    mark_running(session, job.id, worker_id)
    session.refresh(job)
    return job


def running(session: ReadSession) -> list[Job]:
    """Jobs in state running, oldest first."""
    query = select(Job).where(Job.state == "running").order_by(Job.created_at, Job.id)
    return list(session.scalars(query))


def begun(session: ReadSession) -> list[Job]:
    """Jobs that have begun and are not over: running ones, and those that made room for others."""
    query = (
        select(Job)
        .where(Job.state.in_(ACTIVE), (Job.state == "running") | Job.started_at.is_not(None))
        .order_by(Job.created_at, Job.id)
    )
    return list(session.scalars(query))


def mark_running(session: WriteSession, job_id: str, worker_id: str | None = None) -> bool:
    """Give a job its turn, or resume it after a crash; False if it is over or should stop."""
    now = utc_now()
    values = {
        "state": "running",
        "worker_id": worker_id,
        "started_at": func.coalesce(Job.started_at, literal(now, UtcDateTime())),
        "turn_at": now,
        "retry_at": None,
    }
    if _change(session, job_id, ("queued",), values):
        return True
    job = session.get(Job, job_id)
    return job is not None and job.state == "running" and not job.is_cancel_asked


def make_room(session: WriteSession, job_id: str) -> bool:
    """Queue a running job again, between two steps; False if it does not run any more."""
    return _change(session, job_id, ("running",), {"state": "queued"})


def postpone(
    session: WriteSession,
    job_id: str,
    attempt: int,
    error: tuple[str, str],
    *,
    longest_pause_s: float,
    patience_s: float,
) -> None:
    """Queue a running job again from its beginning, because an error stopped it that passes.

    attempt: the number of the attempt that ended; a later one is not stopped. error: its code and
    message. The pauses before the attempts double from 1 s up to longest_pause_s. patience_s after
    the first error the job fails. A job that should be cancelled is cancelled.
    """
    job = session.get(Job, job_id, with_for_update=True)
    if job is None or (job.state, job.attempts) != ("running", attempt):
        return
    code, message = error[0], _storable(error[1])
    if job.is_cancel_asked:
        mark_cancelled(session, job_id)
        return
    now = utc_now()
    since = job.failing_since or now
    if (now - since).total_seconds() >= patience_s:
        tried = f"{message} (tried {job.attempts + 1} times since {since:%Y-%m-%d %H:%M} UTC)"
        mark_failed(session, job_id, code, tried)
        return
    pause_s = min(2.0 ** min(job.attempts, 60), longest_pause_s)
    job.state, job.started_at, job.progress = "queued", None, None
    job.worker_id, job.n_deaths = None, 0
    job.attempts += 1
    job.failing_since, job.retry_at = since, now + timedelta(seconds=pause_s)
    job.error_code, job.error = code, message
    session.flush()
    note_job_change(session)


def report_progress(
    session: WriteSession,
    job_id: str,
    stage: str,
    done_bytes: int,
    total_bytes: int,
    fraction: float | None = None,
    step: tuple[int, int] | None = None,
) -> bool:
    """Store the progress of a running job; False if it should stop (cancelled or deleted).

    done_bytes, total_bytes: of the stage. fraction: of the whole job, if it knows. step: its number
    from 1, and how many the job has, if it counts them.
    """
    progress: dict[str, Any] = {
        "stage": _storable(stage),
        "done_bytes": done_bytes,
        "total_bytes": total_bytes,
    }
    if fraction is not None:
        progress["fraction"] = fraction
    if step is not None:
        progress["step"], progress["n_steps"] = step
    if not _change(session, job_id, ("running",), {"progress": progress}):
        return False
    return not is_cancel_asked(session, job_id)


def add_line(session: WriteSession, job_id: str, text: str) -> None:
    """Append a line to the job's log, unless the log is full or the job was deleted."""
    n_lines = select(func.count()).where(JobLine.job_id == job_id)
    if session.get(Job, job_id) is not None and (session.scalar(n_lines) or 0) < MAX_LINES:
        session.add(JobLine(job_id=job_id, text=_storable(text)))
        session.flush()
        note_job_change(session)


def queue_again(session: WriteSession, job: Job) -> None:
    """Queue a job that failed or was cancelled, as a new attempt from its beginning."""
    job.state, job.attempts, job.is_cancel_asked = "queued", job.attempts + 1, False
    job.worker_id, job.n_deaths = None, 0
    job.started_at = job.finished_at = job.failing_since = job.retry_at = None
    job.progress, job.error_code, job.error = None, None, None
    session.flush()
    note_job_change(session)


def ask_to_stop(session: WriteSession, job: Job) -> None:
    """Cancel a queued job, or ask a running one to stop; one that is over does not change.

    Nor does a running job that has published its result: it ends as done in a moment.
    job: locked by this transaction, because a worker may be taking it.
    """
    if job.state == "running" and job.lane in ASKED and job.repository_id is not None:
        return
    if job.state == "queued":
        job.state, job.finished_at, job.worker_id = "cancelled", utc_now(), None
        job.error_code, job.error = None, None  # why the last attempt failed
    if job.state in ("cancelled", "running"):
        job.is_cancel_asked = True
    session.flush()
    note_job_change(session)


def is_cancel_asked(session: ReadSession, job_id: str) -> bool:
    """Whether the job should stop; True also if the job was deleted."""
    asked = session.scalar(select(Job.is_cancel_asked).where(Job.id == job_id))
    return asked is not False


def mark_done(
    session: WriteSession, job_id: str, result: Mapping[str, Any], attempt: int | None = None
) -> bool:
    """Finish a job with a result; False if it had ended already.

    attempt: the number of the attempt that ended, here and below; a later one is not finished.
    """
    values = {"state": "done", "result": dict(result), "error_code": None, "error": None}
    return _finish(session, job_id, values, attempt)


def mark_failed(
    session: WriteSession, job_id: str, code: str, message: str, attempt: int | None = None
) -> bool:
    """Finish a job with an error; False if it had ended already.

    A job that should be cancelled is cancelled: its error is what stopped it.
    """
    asked = select(Job.is_cancel_asked).where(Job.id == job_id, Job.state == "running")
    if session.scalar(asked):
        return mark_cancelled(session, job_id, attempt)
    values = {"state": "failed", "error_code": code, "error": _storable(message)}
    return _finish(session, job_id, values, attempt)


def mark_cancelled(session: WriteSession, job_id: str, attempt: int | None = None) -> bool:
    """Finish a job that was cancelled; with an error if its repository was deleted."""
    had_one = Job.repository_id.is_not(None) | (Job.kind == SCRUB) | Job.lane.in_(ASKED)
    is_there = session.scalar(select(Job.id).where(Job.id == job_id, had_one))
    return _finish(session, job_id, CANCELLED if is_there is not None else DELETED, attempt)


def _storable(text: str) -> str:
    """Text of a model or of a library, as every database takes it, and not without end."""
    return text[:MAX_LINE].replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _change(
    session: WriteSession,
    job_id: str,
    states: Collection[str],
    values: Mapping[str, Any],
    attempt: int | None = None,
) -> bool:
    statement = update(Job).where(Job.id == job_id, Job.state.in_(states)).values(**values)
    if attempt is not None:
        statement = statement.where(Job.attempts == attempt)
    note_job_change(session)
    return cast(CursorResult[Any], session.execute(statement)).rowcount == 1


def _finish(
    session: WriteSession, job_id: str, values: Mapping[str, Any], attempt: int | None
) -> bool:
    ended = {"finished_at": utc_now(), "retry_at": None, "worker_id": None, **values}
    return _change(session, job_id, ACTIVE, ended, attempt)
