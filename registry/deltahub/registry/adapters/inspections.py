"""Which adapters have to be looked at again, and the jobs that look at those without a report.

An adapter has no report if a release before reports stored it. Nobody looks at all of these at
once: a job looks at one when somebody asks for its report.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import func, select

from deltahub.registry.adapters.files import CONFIG, WEIGHTS
from deltahub.registry.db.models import File, Repository, Revision, utc_now
from deltahub.registry.db.session import ReadSession, also_lock, repository_key
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.db.tables.comparisons import AdapterReportRow
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry

# The kind of job.
INSPECT: Final = "inspect_adapter"
# A report that could not be written is not tried again for so long: readers ask often.
_PAUSE: Final = timedelta(days=1)
# Unfinished jobs of this kind in the hub. Readers who ask for more reports ask again later.
_MOST: Final = 100


def is_outdated(session: ReadSession, revision_id: int) -> bool:
    """Whether a revision is an adapter without a report, or with one that was made when another
    commit of its base, or none, was at hand. False while its files wait for their ingest.
    """
    revision = session.get(Revision, revision_id)
    if revision is None:
        return False
    query = (
        select(Entry.path, File.state)
        .join(File, File.id == Entry.file_id)
        .where(Entry.revision_id == revision_id, Entry.path.in_((CONFIG, WEIGHTS)))
    )
    states = {path: state for path, state in session.execute(query)}
    if CONFIG not in states or any(state != "ingested" for state in states.values()):
        return False
    known = session.get(AdapterReportRow, revision_id)
    if known is None:
        return True
    if revision.declared_base_revision_id is None:
        return False
    base = session.get_one(Revision, revision.declared_base_revision_id)
    told = known.report.get("base") or {}
    return not told.get("is_at_hand") or told.get("commit") != base.commit


@retried
def ask_for_report(reg: Registry, revision_id: int) -> None:
    """Enqueue a look at an adapter without a report, unless one is enqueued or has been in vain."""
    with reg.db.read() as session:
        if not is_outdated(session, revision_id) or not _may_begin(session, revision_id):
            return
        repository_id = session.get_one(Revision, revision_id).repository_id
    with reg.db.write_beside(repository_key(repository_id)) as session:
        also_lock(session, f"inspect {revision_id}")  # another reader may ask at the same time
        revision = session.get(Revision, revision_id)
        is_same = revision is not None and revision.repository_id == repository_id
        if revision is None or not is_same or not _may_begin(session, revision_id):
            return
        payload = {"revision_id": revision_id}
        queue.enqueue(session, INSPECT, payload, repository_id, revision.author_id)


def _may_begin(session: ReadSession, revision_id: int) -> bool:
    """Whether no job writes this report soon, none has tried it lately, and few wait."""
    revision = session.get_one(Revision, revision_id)
    repository = session.get_one(Repository, revision.repository_id)
    own = select(Job.id).where(
        Job.repository_id == repository.id,
        Job.payload["revision_id"].as_integer() == revision_id,
    )
    is_coming = own.where(Job.kind.in_(("ingest", "replan")), Job.state.in_(queue.ACTIVE))
    is_tried = own.where(Job.kind == INSPECT, Job.created_at > utc_now() - _PAUSE)
    if any(session.scalar(query.limit(1)) is not None for query in (is_coming, is_tried)):
        return False
    waiting = select(func.count()).where(Job.kind == INSPECT, Job.state.in_(queue.ACTIVE))
    return (session.scalar(waiting) or 0) < _MOST
