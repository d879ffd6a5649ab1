"""The job `ingest`: what a commit brought becomes packs and recipes, proved before the switch.

payload {"revision_id"}; result {"files"}: how many were ingested. How many relatives are to be
re-planned is not told: they may be private, and of people whom the pusher does not know.
"""

from functools import partial
from typing import Any

from deltahub.registry.arrivals import after_ingest
from deltahub.registry.db.models import Revision
from deltahub.registry.ingest import Ingest
from deltahub.workers.context import JobContext


def ingest(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Scan every file, store packs until nothing is missing, finish every file, tell relatives."""
    revision_id: int = payload["revision_id"]
    work = Ingest(
        context.registry,
        revision_id,
        context.job_id,
        report=context.report,
        check_cancel=context.check_cancel,
        restorer=context.restorer,
    )
    # Remembered, so that the steps after it are the same ones in every run.
    file_ids = context.step("list files", work.pending_files)
    for file_id in file_ids:
        context.step(f"scan file {file_id}", partial(work.scan, file_id))
    n_packs = 0
    while context.step(f"store pack {n_packs}", work.store_next_pack):
        n_packs += 1
    for file_id in file_ids:
        context.step(f"finish file {file_id}", partial(work.finish_file, file_id))

    def tell_relatives() -> list[str]:
        work.release()
        if not revision_exists(context, revision_id):
            return []
        return after_ingest(context.registry, revision_id, context.restorer)

    context.step("tell relatives", tell_relatives)
    return {"files": len(file_ids)}


def revision_exists(context: JobContext, revision_id: int) -> bool:
    """False when its repository was deleted while the job waited: then nothing is left to do."""
    with context.registry.db.read() as session:
        return session.get(Revision, revision_id) is not None
