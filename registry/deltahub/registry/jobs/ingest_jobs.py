"""The ingest jobs of revisions: the first one, and a new one after a failure."""

from sqlalchemy import func, select

from deltahub.registry.db.models import Entry, File, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue

_IN_VAIN = ("failed", "cancelled")


def enqueue_ingest(session: WriteSession, revision: Revision, landed_bytes: int) -> str:
    """Enqueue the ingest of a revision; the new job's id.

    landed_bytes: the size of its files that are not ingested.
    """
    return queue.enqueue(
        session,
        "ingest",
        {"revision_id": revision.id},
        revision.repository_id,
        revision.author_id,
        size_bytes=landed_bytes,
    )


def landed_bytes(session: ReadSession, revision_id: int) -> int:
    """The size of the revision's files that are not ingested."""
    files = select(Entry.file_id).where(Entry.revision_id == revision_id)
    query = select(func.sum(File.size)).where(File.id.in_(files), File.state != "ingested")
    return session.scalar(query) or 0


def has_failed(session: ReadSession, revision: Revision) -> bool:
    """Whether the revision's ingest failed or was cancelled, and was not enqueued again."""
    job = _job_of(session, revision)
    return job is not None and job.state in _IN_VAIN


def job_to_wait_for(
    session: WriteSession, revision: Revision, *, is_restored: bool = False
) -> str | None:
    """The job that ingests the revision; None if no work is left.

    An ingest that failed or was cancelled is enqueued again. So a client starts it again by pushing
    the same files. is_restored: a lost file has its bytes again, so that a running job, which may
    have met the loss already, is not enough.
    """
    job = _job_of(session, revision)
    has_landed = _has_landed(session, revision.id)
    has_begun = job is not None and job.started_at is not None  # it may be queued for its turn
    if job is not None and job.state in queue.ACTIVE and not (is_restored and has_begun):
        return job.id if has_landed else None
    if has_landed or (job is not None and job.state in _IN_VAIN):
        size = landed_bytes(session, revision.id)
        revision.ingest_job_id = enqueue_ingest(session, revision, size)
        return revision.ingest_job_id
    return None


def _job_of(session: ReadSession, revision: Revision) -> Job | None:
    return None if revision.ingest_job_id is None else session.get(Job, revision.ingest_job_id)


def _has_landed(session: ReadSession, revision_id: int) -> bool:
    query = (
        select(Entry.file_id)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision_id, File.state.in_(("landed", "proving")))
    )
    return session.scalar(query.limit(1)) is not None
