"""The job `replan`: stores tensors as deltas of a base that came, or was declared, after them.

payload {"revision_id"}; result {"switched", "saved_bytes"}: number of re-encoded tensors, and by
how many bytes they became smaller.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.reencode.replan import Replanner
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.adapters.inspection.inspect import look_again
from deltahub.workers.jobs.ingest import repository_of


def replan(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Re-plan the revision one pack at a time, then measure the bases of affected revisions."""
    revision_id: int = payload["revision_id"]
    planner: Replanner | None = None

    def replan_pack(position: int) -> dict[str, Any] | None:
        nonlocal planner
        if repository_of(context, revision_id) is None:
            return None
        if planner is None:
            planner = Replanner(context.registry, context.reader, revision_id)

        def progress(done_bytes: int, total_bytes: int) -> None:
            context.check_cancel()
            context.report("replan", done_bytes, total_bytes)

        return asdict(planner.step(position, progress))

    def measure() -> None:
        if repository_of(context, revision_id) is not None:
            measure_affected(context.registry, revision_id)
            # An adapter's report may have been made before its base came.
            look_again(context.registry, context.reader, revision_id)

    position: int | None = 0
    switched, saved_bytes = 0, 0
    while position is not None:
        done = context.step(f"replan from {position}", partial(replan_pack, position))
        if done is None:
            break
        switched += done["switched"]
        saved_bytes += done["saved_bytes"]
        position = done["next_position"]
    context.step("measure lineage", measure)
    return {"switched": switched, "saved_bytes": saved_bytes}
