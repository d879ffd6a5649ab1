"""Which job runs next: a rule over rows of `jobs` that knows nothing of workers.

Users take turns. The next turn goes to the user with the fewest running jobs, and among these to
the user whose last turn is longest ago. So a user with many jobs delays another user by one turn.
A scrub of stored bytes is nobody's job: it waits for all others until it is due.

Within a user the job that is due first runs first. A job is due at its creation plus a delay that
grows with its estimated length, so that short jobs overtake long ones. The delay is bounded: no job
waits for ever behind shorter ones.
"""

import math
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import aliased

from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job

# Bytes per second of each kind of job, roughly: ingest encodes, a proof only decodes.
_SPEED: Final = {"prove_recipe": 512 << 20}
_SPEED_OF_OTHERS: Final = 64 << 20
# (longest estimated length, delay), both in seconds. The classes are coarse, because jobs of one
# class run in the order of their creation: a base and its fine-tune have about one size, and the
# one that was pushed first should be stored first.
_DELAYS: Final = ((2, 0), (16, 30), (128, 120), (1024, 600), (math.inf, 1800))
# Nobody waits for a re-planning.
SCRUB: Final = "scrub"
_BACKGROUND_DELAY_S: Final = {"replan": 600, SCRUB: 2400}
# Longer than every pause between two attempts.
_NO_PAUSE: Final = timedelta(days=1)


def due_at(created_at: datetime, kind: str, size_bytes: int) -> datetime:
    """When a job is due among the jobs of its user. size_bytes: how much the job has to read."""
    length_s = size_bytes / _SPEED.get(kind, _SPEED_OF_OTHERS)
    delay_s = next(delay for longest, delay in _DELAYS if length_s <= longest)
    return created_at + timedelta(seconds=delay_s + _BACKGROUND_DELAY_S.get(kind, 0))


def is_ready(now: datetime) -> ColumnElement[bool]:
    """SQL condition: the job may run now. A job that failed for a moment waits for its retry.

    A retry that is further away than any pause was planned while the clock was ahead.
    """
    is_due = or_(Job.retry_at.is_(None), Job.retry_at <= now, Job.retry_at > now + _NO_PAUSE)
    return and_(Job.state == "queued", is_due)


def ready_jobs(
    now: datetime,
    kinds: Collection[str] | None = None,
    lane: str | None = None,
    worker_id: str | None = None,
) -> Select[Job]:
    """Jobs that this worker may run now, in the order in which workers take them.

    kinds, lane: only these.
    """
    ready = and_(is_ready(now), or_(Job.worker_id.is_(None), Job.worker_id == worker_id))
    if kinds is not None:
        ready = and_(ready, Job.kind.in_(kinds))
    if lane is not None:
        ready = and_(ready, Job.lane == lane)
    other = aliased(Job)
    # PostgreSQL uses no index for IS NOT DISTINCT FROM.
    is_same_user = or_(
        other.user_id == Job.user_id, and_(other.user_id.is_(None), Job.user_id.is_(None))
    )
    n_running = select(func.count()).where(is_same_user, other.state == "running")
    last_turn = select(func.max(other.turn_at)).where(is_same_user)
    users = (
        select(
            Job.user_id,
            n_running.scalar_subquery().label("n_running"),
            last_turn.scalar_subquery().label("last_turn"),
        )
        .where(ready)
        .group_by(Job.user_id)
        .subquery()
    )
    return (
        select(Job)
        .join(users, Job.user_id.is_not_distinct_from(users.c.user_id))
        .where(ready)
        .order_by(
            _waits_for_all(now),
            users.c.n_running,
            users.c.last_turn.nulls_first(),
            _due(),
            Job.created_at,
            Job.id,
        )
    )


def should_make_room(session: ReadSession, job_id: str) -> bool:
    """Whether a running job should stop between two steps and let another job run.

    It should if a job of another user may run now, or a job of the same user that is due earlier.
    """
    job = session.get(Job, job_id)
    if job is None:
        return False
    comes_first = or_(
        Job.user_id.is_distinct_from(job.user_id), _due() < (job.due_at or job.created_at)
    )
    now = utc_now()
    is_free = or_(Job.worker_id.is_(None), Job.worker_id == job.worker_id)
    is_next = and_(is_ready(now), is_free, Job.lane == job.lane, comes_first, ~_waits_for_all(now))
    return session.scalar(select(exists().where(is_next))) is True


def _waits_for_all(now: datetime) -> ColumnElement[bool]:
    """SQL condition: the job runs only when no other may. That ends when it is due."""
    return and_(Job.kind == SCRUB, _due() > now)


def _due() -> ColumnElement[datetime | None]:
    # Jobs of an older release have no due_at.
    return func.coalesce(Job.due_at, Job.created_at)
