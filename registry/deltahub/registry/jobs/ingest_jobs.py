"""The ingest jobs of revisions: the first one, and a new one after a failure."""

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import aliased

from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, Revision, is_not_ingested
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink
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


def landed_bytes(session: ReadSession, revision: Revision) -> int:
    """The size of the revision's files that are not ingested."""
    return session.scalar(select(total(File.size)).where(*_is_waiting_in(revision))) or 0


def has_landed(session: ReadSession, revision: Revision) -> bool:
    """Whether an ingest of the revision has a file to store or to prove."""
    is_sound = File.state.in_(("landed", "proving"))
    query = select(File.id).where(*_is_waiting_in(revision), is_sound)
    return session.scalar(query.limit(1)) is not None


def is_unsettled(session: ReadSession, revision: Revision) -> bool:
    """Whether the revision has an ingest that is not done."""
    job = _job_of(session, revision)
    return job is not None and job.state != "done"


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
    is_waiting = has_landed(session, revision)
    has_begun = job is not None and job.started_at is not None  # it may be queued for its turn
    if job is not None and job.state in queue.ACTIVE and not (is_restored and has_begun):
        return job.id if is_waiting else None
    if is_waiting or (job is not None and job.state in _IN_VAIN):
        size = landed_bytes(session, revision)
        revision.ingest_job_id = enqueue_ingest(session, revision, size)
        return revision.ingest_job_id
    return None


def _job_of(session: ReadSession, revision: Revision) -> Job | None:
    return None if revision.ingest_job_id is None else session.get(Job, revision.ingest_job_id)


def _is_waiting_in(revision: Revision) -> tuple[ColumnElement[bool], ...]:
    """SQL conditions on File: not ingested, and in this revision.

    There are few such files, so the database looks at each, not at all of the revision.
    """
    group, leaf = aliased(TreeLink), aliased(TreeLink)
    is_listed = exists(
        select(TreeEntry.file_id)
        .join(leaf, leaf.child_id == TreeEntry.node_id)
        .join(group, group.child_id == leaf.parent_id)
        .where(TreeEntry.file_id == File.id, group.parent_id == revision.tree_id)
    )
    return is_not_ingested(), is_listed
