"""The scrub that the worker runs by itself: a job for a slice of the objects now and then.

Each object is proved once in DELTAHUB_SCRUB_DAYS. It comes up when half of that time has passed,
and a slice takes twice its share of all bytes, so that even objects that came all at once are
proved in time, spread over the other half.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select

from deltahub.registry.db.models import utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.scrub import Proof
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.queue import SCRUB
from deltahub.registry.maintenance.scrub import due
from deltahub.registry.registry import Registry

# Slices in DELTAHUB_SCRUB_DAYS: of 30 days one is an hour.
SLICES: Final = 720
# Longest time between two looks for packs that should get a second copy.
SURVEY_INTERVAL: Final = timedelta(days=1)
# Rows of `proofs` that say when a slice was last due, and when packs were looked through.
_SLICE: Final = ("tick", "slice")
_SURVEY: Final = ("tick", "survey")


@dataclass(frozen=True)
class Slice:
    """The work of one job: objects last checked before a time, up to so many bytes."""

    before: datetime
    limit_bytes: int
    is_survey: bool

    def as_payload(self) -> dict[str, Any]:
        return {
            "before": self.before.isoformat(),
            "limit_bytes": self.limit_bytes,
            "is_survey": self.is_survey,
        }

    @classmethod
    def of_payload(cls, payload: dict[str, Any]) -> "Slice":
        before = datetime.fromisoformat(payload["before"])
        return cls(before, payload["limit_bytes"], payload["is_survey"])


def interval_s(reg: Registry) -> float | None:
    """Seconds from one slice to the next; None if the hub is never scrubbed."""
    days = reg.settings.scrub_days
    return days * 86400 / SLICES if days else None


def enqueue_if_due(reg: Registry) -> str | None:
    """Enqueue the next slice if it is due; its job's id. However many workers ask, there is one.

    Costs a row's look-up while no slice is due, and makes no job while there is nothing to prove.
    """
    wait_s = interval_s(reg)
    if wait_s is None:
        return None
    now = utc_now()
    with reg.db.read() as session:
        is_new = session.get(Proof, _SLICE) is None
    if is_new:  # the first slice comes one interval after the hub's first worker
        with reg.db.write() as session:
            _tick(session, _SLICE, now)
            _tick(session, _SURVEY, now)
        return None
    with reg.db.read() as session:
        if not _is_due(session, _SLICE, now, timedelta(seconds=wait_s)):
            return None
        work = _next_slice(reg, session, now)
    with reg.db.write() as session:
        if not _is_due(session, _SLICE, now, timedelta(seconds=wait_s)):
            return None  # another worker was faster
        is_open = (Job.kind == SCRUB) & Job.state.in_(queue.ACTIVE)
        if session.scalar(select(Job.id).where(is_open).limit(1)) is not None:
            return None
        _tick(session, _SLICE, now)
        if work is None:
            return None
        if work.is_survey:
            _tick(session, _SURVEY, now)
        return queue.enqueue(session, SCRUB, work.as_payload(), size_bytes=work.limit_bytes)


def _next_slice(reg: Registry, session: ReadSession, now: datetime) -> Slice | None:
    days = timedelta(days=reg.settings.scrub_days)
    before = now - days / 2
    is_survey = reg.settings.second_copy_dependents > 0 and _is_due(
        session, _SURVEY, now, min(SURVEY_INTERVAL, days / 30)
    )
    n_bytes = due.count(session)[1]
    if not n_bytes or not (is_survey or due.oldest(session, before, 1)):
        return None
    return Slice(before, max(1, -(-2 * n_bytes // SLICES)), is_survey)


def _is_due(
    session: ReadSession, tick: tuple[str, str], now: datetime, interval: timedelta
) -> bool:
    last = session.get(Proof, tick, populate_existing=True)
    # A time in the future was written by a clock that was ahead.
    return last is None or not now - interval < last.checked_at <= now + interval


def _tick(session: WriteSession, tick: tuple[str, str], now: datetime) -> None:
    row = session.get(Proof, tick)
    if row is None:
        row = Proof(kind=tick[0], object_id=tick[1])
        session.add(row)
    row.checked_at = now
    session.flush()
