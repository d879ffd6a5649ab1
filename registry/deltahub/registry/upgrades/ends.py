"""Notes how the jobs of moves ended, in the rows of their upgrades."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import and_, or_, select

from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.models import Repository, Revision, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import Upgrade, UpgradedAdapter
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.plans import forget_task, settle

# Rows in one look.
_MOST: Final = 100


def note_ends(reg: Registry) -> tuple[int, list[int]]:
    """Note how the jobs of moves ended; (rows that changed, those that were put back before).

    Also of jobs that were retried after they had failed.
    """
    is_again = and_(UpgradedAdapter.state == "failed", Job.state.in_((*queue.ACTIVE, "done")))
    is_late = and_(
        UpgradedAdapter.state == "put_back", Job.state == "done", Job.repository_id.is_not(None)
    )
    is_over = and_(
        UpgradedAdapter.state == "running",
        or_(Job.id.is_(None), Job.state.not_in(queue.ACTIVE)),
    )
    query = (
        select(UpgradedAdapter.id)
        .outerjoin(Job, Job.id == UpgradedAdapter.job_id)
        .where(UpgradedAdapter.job_id.is_not(None), or_(is_over, is_again, is_late))
        .order_by(UpgradedAdapter.id)
        .limit(_MOST)
    )
    with reg.db.read() as session:
        found = list(session.scalars(query))
    n_deletions = _note_deletions(reg)
    return n_deletions + len(found), [row_id for row_id in found if _note_end(reg, row_id)]


@retried
def _note_deletions(reg: Registry) -> int:
    """Note how the jobs ended that delete results of upgrades that were put back; how many."""
    ended = (
        select(UpgradedAdapter.id)
        .outerjoin(Job, Job.id == UpgradedAdapter.deletion_id)
        .where(
            UpgradedAdapter.deletion_id.is_not(None),
            or_(Job.id.is_(None), Job.state.not_in(queue.ACTIVE)),
        )
        .order_by(UpgradedAdapter.id)
        .limit(_MOST)
    )
    with reg.db.read() as session:
        found = list(session.scalars(ended))
    for row_id in found:
        with reg.db.write_beside() as session:
            row = session.get(UpgradedAdapter, row_id, with_for_update=True)
            if row is None or row.deletion_id is None:
                continue
            job = session.get(Job, row.deletion_id)
            if job is not None and job.state in queue.ACTIVE:
                continue  # another one since
            row.deletion_id = None
            if row.state != "published":
                continue
            row.changed_at = utc_now()
            if row.result_repository_id is None:
                row.state, row.why, row.job_id = "put_back", None, None
                forget_task(row)
            else:
                error = None if job is None else job.error
                row.why = f"not put back: {error or 'the job that deletes it was stopped'}"[:2000]
            settle(session, session.get_one(Upgrade, row.upgrade_id))
    return len(found)


@retried
def _note_end(reg: Registry, row_id: int) -> bool:
    """Whether the row was put back before its job published."""
    with reg.db.write_beside() as session:
        row = session.get(UpgradedAdapter, row_id, with_for_update=True)
        if row is None or row.job_id is None:
            return False
        was_put_back = row.state == "put_back"
        _write_end(session, row, session.get(Job, row.job_id))
        session.flush()
        settle(session, session.get_one(Upgrade, row.upgrade_id))
        return was_put_back


def _write_end(session: WriteSession, row: UpgradedAdapter, job: Job | None) -> None:
    row.changed_at = utc_now()
    if job is None:
        row.state, row.why, row.job_id = "failed", "its job was deleted", None
    elif job.state in queue.ACTIVE:
        row.state, row.why = "running", None
    elif job.state == "done":
        result = job.result or {}
        is_published = bool(result.get("published")) and job.repository_id is not None
        row.state = "published" if is_published else "kept"
        kept = ("chosen", "agreed", "reasons")
        row.outcome = {key: result[key] for key in kept if key in result}
        row.outcome["rungs"] = _rungs(result)
        row.why = "; ".join(map(str, result.get("reasons") or []))[:2000] or None
        if is_published:
            repository = session.get_one(Repository, job.repository_id)
            head = session.get(Revision, repository.head_id)
            row.result_repository_id = repository.id
            row.result_name = full_name(session, repository)
            row.result_commit = None if head is None else head.commit
            if result.get("revision"):
                row.result_commit = str(result["revision"])
    else:
        row.state = "failed"
        row.why = job.error or "its job was cancelled"


def _rungs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was measured of each way: the numbers that the table of an upgrade shows."""
    report = result.get("report")
    found = report.get("rungs") if isinstance(report, Mapping) else None
    keys = ("rung", "agreed", "flips", "cost", "why_not")
    return [
        {key: each[key] for key in keys if key in each}
        for each in found or []
        if isinstance(each, Mapping)
    ]
