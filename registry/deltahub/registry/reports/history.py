"""What the hub held over time: a row an hour for 90 days, then a row a day.

Every server calls note() at intervals. The first one in an hour writes the row, and each adds what
went through it since its last call that wrote.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select

from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Repository, utc_now
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.lists import RevisionFacts
from deltahub.registry.db.tables.quotas import HubHistory
from deltahub.registry.registry import Registry
from deltahub.registry.reports.hub_totals import read_totals

HOUR: Final = timedelta(hours=1)
# How long every hour is kept.
HOURLY_FOR: Final = timedelta(days=90)
# Days that are thinned at once, so that a hub that slept for years is not thinned in one go.
_DAYS_AT_ONCE: Final = 30
# Jobs that ended are looked for among those that were made so long ago, because the index of jobs
# is that of their creation. A job that waited for longer is not counted.
_LONGEST_JOB: Final = timedelta(days=7)
# Rows that a chart gets at most; it gets every n-th of more.
MOST_POINTS: Final = 400


@dataclass(frozen=True)
class Traffic:
    """Bytes and requests of one server: since its start, or between two moments."""

    sent_bytes: int = 0
    received_bytes: int = 0
    requests: int = 0

    def since(self, earlier: "Traffic") -> "Traffic":
        """What came since then."""
        return Traffic(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.requests - earlier.requests,
        )


@dataclass(frozen=True)
class Moment:
    """The hub at a time. jobs_done and all after it: since the moment before."""

    at: datetime
    n_repositories: int
    n_files: int  # in the heads of all models
    logical_bytes: int
    stored_bytes: dict[str, int]  # by kind of object
    jobs_done: int
    jobs_failed: int
    sent_bytes: int
    received_bytes: int
    requests: int

    @property
    def stored_in_all(self) -> int:
        return sum(self.stored_bytes.values())


class HistoryWriter:
    """What one server process does for the history. Not for several threads."""

    def __init__(self, reg: Registry) -> None:
        self._reg = reg
        self._noted_hour: datetime | None = None
        self._noted = Traffic()

    def note(self, traffic: Traffic, now: datetime | None = None) -> None:
        """Write this hour's row unless another server has, and add this server's traffic.

        traffic: since this server's start. Costs nothing again within an hour.
        """
        hour = hour_of(now or utc_now())
        if hour == self._noted_hour:
            return
        with self._reg.db.read() as session:
            is_there = session.get(HubHistory, hour) is not None
        row = None if is_there else _measured(self._reg, hour)
        new = traffic.since(self._noted)
        with self._reg.db.write() as session:
            found = session.get(HubHistory, hour)
            if found is None:
                found = row or _measured(self._reg, hour)
                session.add(found)
                _thin(session, hour)
            found.sent_bytes += new.sent_bytes
            found.received_bytes += new.received_bytes
            found.requests += new.requests
        self._noted_hour, self._noted = hour, traffic


def hour_of(moment: datetime) -> datetime:
    """The beginning of its hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def read_history(reg: Registry, span: timedelta | None = None) -> list[Moment]:
    """The moments of the last `span`, or all, oldest first; at most MOST_POINTS of them."""
    query = select(HubHistory).where(HubHistory.at <= utc_now()).order_by(HubHistory.at)
    if span is not None:
        query = query.where(HubHistory.at >= utc_now() - span)
    with reg.db.read() as session:
        rows = [_moment(row) for row in session.scalars(query)]
    return _joined(rows, -(-len(rows) // MOST_POINTS)) if len(rows) > MOST_POINTS else rows


def _joined(rows: list[Moment], n: int) -> list[Moment]:
    """Every n rows as one: the last of them, with the sums of what came since the one before."""
    made = []
    # From the end, so that the latest moment is a whole one.
    for end in range(len(rows), 0, -n):
        part = rows[max(end - n, 0) : end]
        sums = {name: sum(getattr(each, name) for each in part) for name in _SUMS}
        made.append(replace(part[-1], **sums))
    return made[::-1]


_SUMS: Final = ("jobs_done", "jobs_failed", "sent_bytes", "received_bytes", "requests")


def _moment(row: HubHistory) -> Moment:
    return Moment(
        row.at, row.n_repositories, row.n_files, row.logical_bytes, dict(row.stored_bytes),
        *(getattr(row, name) for name in _SUMS),
    )  # fmt: skip


def _measured(reg: Registry, hour: datetime) -> HubHistory:
    totals = read_totals(reg)
    with reg.db.read() as session:
        n_files = session.scalar(
            select(total(RevisionFacts.n_files)).join(
                Repository, Repository.head_id == RevisionFacts.revision_id
            )
        )
        before = session.scalar(select(func.max(HubHistory.at)).where(HubHistory.at < hour))
        ended = _ended_jobs(session, before or hour - HOUR)
    return HubHistory(
        at=hour,
        n_repositories=totals.n_repositories,
        n_files=n_files or 0,
        logical_bytes=totals.logical_bytes,
        stored_bytes=dict(totals.stored_bytes),
        jobs_done=ended.get("done", 0),
        jobs_failed=ended.get("failed", 0),
        sent_bytes=0,
        received_bytes=0,
        requests=0,
    )


def _ended_jobs(session: ReadSession, since: datetime) -> dict[str, int]:
    query = (
        select(Job.state, func.count())
        .where(
            Job.created_at >= since - _LONGEST_JOB,
            Job.finished_at >= since,
            Job.state.in_(("done", "failed")),
        )
        .group_by(Job.state)
    )
    return {state: n for state, n in session.execute(query)}


def _thin(session: WriteSession, hour: datetime) -> None:
    """Keep the last row of each day that is old, with the day's sums."""
    edge = (hour - HOURLY_FOR).replace(hour=0)
    old = select(HubHistory).where(HubHistory.at < edge).order_by(HubHistory.at.desc())
    by_day: dict[object, list[HubHistory]] = {}
    for row in session.scalars(old.limit(24 * _DAYS_AT_ONCE)):
        by_day.setdefault(row.at.date(), []).append(row)
    for last, *others in by_day.values():
        for name in _SUMS:
            setattr(last, name, sum(getattr(each, name) for each in (last, *others)))
        times = [each.at for each in others]
        session.flush()
        session.execute(delete(HubHistory).where(HubHistory.at.in_(times)))
