"""The job `ingest`: stores the new files of a commit as packs and recipes, verified first.

payload {"revision_id"}; result {"files"}: number of ingested files. The result does not say how
many other revisions will be re-planned, because these may be private to other users.
"""

from functools import partial
from typing import Any

from deltahub.registry.cards.describe import describe
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import repository_key
from deltahub.registry.errors import DataLost
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.quotas.usage import measure
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.registry.retention.rules import apply_rule
from deltahub.workers.context import JobContext
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.adapters.inspection.inspect import inspect_stored
from deltahub.workers.jobs.upgrades.proposing import propose_upgrades


def ingest(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Scan all files, store packs until no tensor is missing, finish all files, queue replans.

    Then drop the old revisions that the repository's rule of retention does not keep.
    """
    revision_id: int = payload["revision_id"]
    work = Ingest(
        context.registry,
        context.reader,
        revision_id,
        context.job_id,
        report=context.report,
        check_cancel=context.check_cancel,
    )
    # A step, so that its result is recorded: all later steps are then the same in every run.
    steps = context.step("list files", work.pending_files)
    for number, file_ids in enumerate(steps):
        context.step(f"scan files {number}", partial(work.scan, file_ids))
    n_packs = 0
    while context.step(f"store pack {n_packs}", work.store_next_pack):
        n_packs += 1
    damaged: StepFailed | None = None
    for number, file_ids in enumerate(steps):
        try:
            context.step(f"finish files {number}", partial(work.finish, file_ids))
        except StepFailed as error:
            if error.code != DataLost.code:
                raise
            damaged = damaged or error  # go on: files of other steps may be intact
    if damaged is not None:
        raise damaged

    def queue_replans() -> list[str]:
        work.release()
        repository_id = repository_of(context, revision_id)
        if repository_id is None:
            return []
        # The server wrote the facts after the commit, unless it died or a file could not be read.
        describe(context.registry, context.reader, revision_id)
        queued = after_ingest(context.registry, context.reader, revision_id)
        inspect_stored(context.registry, context.reader, revision_id)
        propose_upgrades(context.registry, context.reader, revision_id)
        apply_rule(context.registry, repository_id)
        with context.registry.db.write_beside(repository_key(repository_id)) as session:
            if session.get(Repository, repository_id) is not None:
                measure(session, repository_id)
        return queued

    context.step("tell relatives", queue_replans)
    return {"files": sum(map(len, steps))}


def repository_of(context: JobContext, revision_id: int) -> int | None:
    """The repository of a revision; None if it was deleted meanwhile, so that a job has no work."""
    with context.registry.db.read() as session:
        revision = session.get(Revision, revision_id)
        return None if revision is None else revision.repository_id
