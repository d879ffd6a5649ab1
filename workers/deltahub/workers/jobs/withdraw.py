"""The job `withdraw`: stores other models without a repository, then hides or deletes it.

payload {"change", "scope", "commit"}: `private` or `delete`, the scope of the token that asked, and
the commit that the repository must still be at, or null; result {}, because the caller may not read
all of the models that were stored again.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

from deltahub.registry.jobs.progress import Progress
from deltahub.registry.lineage.measured import measure_affected
from deltahub.registry.reencode.withdraw import WithdrawJob
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.ingest import repository_of


def withdraw(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Store the dependents without the repository, do the change, measure lineage again."""
    work = WithdrawJob(
        context.registry, context.reader, context.job_id, payload["change"], payload["scope"]
    )
    progress = Progress(context.report, context.check_cancel)

    def step() -> dict[str, Any]:
        return asdict(work.step(progress))

    revisions: dict[int, None] = {}
    number, is_last = 0, False
    while not is_last:
        done = context.step(f"store without it {number}", step)
        if done["revision_id"] is not None:
            revisions[done["revision_id"]] = None
        is_last = done["is_last"]
        number += 1

    def measure(revision: int) -> None:
        if repository_of(context, revision) is not None:
            measure_affected(context.registry, revision)

    for revision in revisions:
        context.step(f"measure lineage of {revision}", partial(measure, revision))
    return {}
