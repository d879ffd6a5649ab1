"""The job `withdraw`: makes a repository private or deletes it, after others are stored without it.

payload {"change", "scope"}: `private` or `delete`, and the scope of the token that asked; result
{"switched"}: number of tensors of other models that were stored without the repository's.
"""

from functools import partial
from typing import Any

from deltahub.registry.jobs.progress import Progress
from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.reencode.withdraw import Withdrawing
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.ingest import revision_exists


def withdraw(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Store the dependents without the repository, do the change, measure lineage again."""
    work = Withdrawing(
        context.registry, context.reader, context.job_id, payload["change"], payload["scope"]
    )
    progress = Progress(context.report, context.check_cancel)

    def step() -> dict[str, Any]:
        return work.step(progress).as_dict()

    revisions: dict[int, None] = {}
    switched, number, is_last = 0, 0, False
    while not is_last:
        done = context.step(f"store without it {number}", step)
        revisions.update(dict.fromkeys(done["revisions"]))
        switched += done["switched"]
        number += 1
        is_last = done["is_last"]

    def measure(revision: int) -> None:
        if revision_exists(context, revision):
            measure_affected(context.registry, revision)

    for revision in revisions:
        context.step(f"measure lineage of {revision}", partial(measure, revision))
    return {"switched": switched}
