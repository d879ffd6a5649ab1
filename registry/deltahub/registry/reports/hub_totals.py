"""How much a whole hub holds and how many jobs it has, for monitoring.

Each query reads an index, or a table with one row for a repository, pack or upload. The tables with
a row for each file, tensor or frame are left out: reports/codec_totals.py reads frames in pieces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import QueuePool, func, select

from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Landing, Pack, Repository, User, Xorb
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.quotas import RepositoryUsage
from deltahub.registry.db.tables.scrub import FoundDamage, PackCopy
from deltahub.registry.registry import Registry

# Jobs of one state that are looked at, the oldest first: nobody needs to know more exactly.
MOST_JOBS: Final = 100_000
_JOB_STATES: Final = ("queued", "running", "failed")


@dataclass(frozen=True)
class JobTotal:
    """The jobs of one kind, lane and state; at most MOST_JOBS of a state are counted."""

    kind: str
    lane: str
    state: str
    n_jobs: int
    oldest_at: datetime  # when the oldest one was made


@dataclass(frozen=True)
class HubTotals:
    """What a hub holds.

    stored_bytes: kind of object (pack, copy, upload, xorb) -> bytes in the store.
    logical_bytes: of all files of all revisions of each repository, each once, as they were pushed.
    findings: kind of object -> open findings of scrub, fsck and reads.
    """

    n_repositories: int
    n_users: int
    stored_bytes: Mapping[str, int]
    logical_bytes: int
    jobs: tuple[JobTotal, ...]
    findings: Mapping[str, int]


def read_totals(reg: Registry) -> HubTotals:
    """The totals of now. A million repositories take about two seconds on a busy machine."""
    with reg.db.read() as session:
        n_repositories = session.scalar(select(func.count()).select_from(Repository)) or 0
        n_users = session.scalar(select(func.count()).select_from(User)) or 0
        logical_bytes = session.scalar(select(total(RepositoryUsage.logical_bytes))) or 0
    # Short transactions, so that none keeps the database from tidying up for long.
    with reg.db.read() as session:
        stored_bytes = _stored_bytes(session)
    with reg.db.read() as session:
        jobs = tuple(each for state in _JOB_STATES for each in _jobs(session, state))
        query = (
            select(FoundDamage.kind, func.count())
            .where(FoundDamage.state == "open")
            .group_by(FoundDamage.kind)
        )
        findings = {kind: n for kind, n in session.execute(query)}
    return HubTotals(n_repositories, n_users, stored_bytes, logical_bytes, jobs, findings)


def _stored_bytes(session: ReadSession) -> dict[str, int]:
    # What is being written may not be there yet, and what is gone is not there any more.
    packs = select(total(Pack.size)).where(Pack.state.in_(("live", "damaged", "condemned")))
    copies = select(total(PackCopy.size)).where(PackCopy.state.in_(("live", "condemned")))
    uploads = select(total(Landing.size)).where(Landing.state == "complete")
    xorbs = select(total(Xorb.size)).where(Xorb.state.in_(("live", "condemned")))
    queries = {"pack": packs, "copy": copies, "upload": uploads, "xorb": xorbs}
    return {kind: session.scalar(query) or 0 for kind, query in queries.items()}


def _jobs(session: ReadSession, state: str) -> list[JobTotal]:
    # The limit bounds the query, and its order is that of the index on the state.
    some = (
        select(Job.kind, Job.lane, Job.created_at)
        .where(Job.state == state)
        .limit(MOST_JOBS)
        .subquery()
    )
    query = select(some.c.kind, some.c.lane, func.count(), func.min(some.c.created_at)).group_by(
        some.c.kind, some.c.lane
    )
    return [
        JobTotal(kind, lane, state, n_jobs, oldest_at)
        for kind, lane, n_jobs, oldest_at in session.execute(query)
    ]


def count_failed_jobs(reg: Registry, since: datetime) -> int:
    """Jobs that were made since then and failed, at most MOST_JOBS."""
    some = (
        select(Job.id)
        .where(Job.state == "failed", Job.created_at >= since)
        .limit(MOST_JOBS)
        .subquery()
    )
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(some)) or 0


def connections_in_use(reg: Registry) -> dict[str, int]:
    """Pool of connections to the database -> how many are in use. Asks no database."""
    pools = {"read": reg.db.read_engine.pool, "write": reg.db.write_engine.pool}
    return {name: pool.checkedout() for name, pool in pools.items() if isinstance(pool, QueuePool)}
