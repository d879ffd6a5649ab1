"""The job `ingest`: what a commit brought becomes packs and recipes, proved before the switch.

payload {"revision_id"}; result {"files"}: how many were ingested. How many relatives are to be
re-planned is not told: they may be private, and of people whom the pusher does not know.
"""

from functools import partial
from typing import Any

from deltahub.registry.db.models import Revision
from deltahub.registry.errors import DataLost
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.workers.context import JobContext, StepFailed


def ingest(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Scan every file, store packs until nothing is missing, finish every file, tell relatives."""
    revision_id: int = payload["revision_id"]
    work = Ingest(
        context.registry,
        context.reader,
        revision_id,
        context.job_id,
        report=context.report,
        check_cancel=context.check_cancel,
    )
    # Remembered, so that the steps after it are the same ones in every run.
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
            damaged = damaged or error  # the files of the other steps may be whole
    if damaged is not None:
        raise damaged

    def tell_relatives() -> list[str]:
        work.release()
        if not revision_exists(context, revision_id):
            return []
        return after_ingest(context.registry, context.reader, revision_id)

    context.step("tell relatives", tell_relatives)
    return {"files": sum(map(len, steps))}


def revision_exists(context: JobContext, revision_id: int) -> bool:
    """False when its repository was deleted while the job waited: then nothing is left to do."""
    with context.registry.db.read() as session:
        return session.get(Revision, revision_id) is not None
