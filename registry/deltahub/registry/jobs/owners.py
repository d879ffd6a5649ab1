"""Which worker a job belongs to.

A job belongs to the worker that runs it, also while it makes room for another one. When a worker
ends or dies, its jobs belong to nobody, until another worker takes them and goes on at their first
unfinished step. Every function works in the caller's transaction.
"""

from collections.abc import Collection
from typing import Any, cast

from sqlalchemy import CursorResult, case, select, update

from deltahub.registry.db.session import ReadSession, WriteSession, note_job_change
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue


class JobLost(Exception):
    """Another worker has the job, because the one that ran it was taken for dead."""


def ids_of(session: ReadSession) -> set[str]:
    """The workers to which unfinished jobs belong, dead or alive."""
    query = select(Job.worker_id).where(Job.worker_id.is_not(None), Job.state.in_(queue.ACTIVE))
    return {worker_id for worker_id in session.scalars(query.distinct()) if worker_id}


def has_orphan(session: ReadSession, lane: str) -> bool:
    """Whether a running job of this lane belongs to no worker."""
    query = select(Job.id).where(Job.state == "running", Job.worker_id.is_(None), Job.lane == lane)
    return session.scalar(query.limit(1)) is not None


def take_orphan(session: WriteSession, lane: str, worker_id: str) -> Job | None:
    """A running job of this lane that belongs to no worker, now to this one; None without any."""
    orphans = select(Job).where(Job.state == "running", Job.worker_id.is_(None), Job.lane == lane)
    oldest = orphans.order_by(Job.created_at, Job.id).limit(1)
    job = session.scalar(oldest.with_for_update(skip_locked=True))
    if job is not None:
        job.worker_id = worker_id
        session.flush()
    return job


def require_worker(session: WriteSession, job_id: str, worker_id: str) -> None:
    """JobLost if the job belongs to another worker; it then stays with this one until the commit.

    A job that was deleted is lost to nobody.
    """
    row = select(Job.worker_id, Job.state).where(Job.id == job_id)
    job = session.execute(row.with_for_update(key_share=True)).one_or_none()
    if job is not None and job.state in queue.ACTIVE and job.worker_id != worker_id:
        raise JobLost(f"job {job_id} was given to another worker")


def release(session: WriteSession, worker_id: str) -> None:
    """Give up the jobs of a worker that ends: the next one goes on with them."""
    session.execute(update(Job).where(Job.worker_id == worker_id).values(worker_id=None))
    note_job_change(session)


def release_dead(session: WriteSession, live: Collection[str]) -> int:
    """Give up the jobs of all workers but these, which died; returns how many."""
    is_running = Job.state == "running"
    statement = (
        update(Job)
        .where(Job.worker_id.is_not(None), Job.worker_id.not_in(live), Job.state.in_(queue.ACTIVE))
        .values(worker_id=None, n_deaths=Job.n_deaths + case((is_running, 1), else_=0))
        .execution_options(synchronize_session=False)
    )
    note_job_change(session)
    return cast(CursorResult[Any], session.execute(statement)).rowcount
