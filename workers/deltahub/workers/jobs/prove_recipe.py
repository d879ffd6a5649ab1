"""The job `prove_recipe`: rebuilds a file by a client's recipe and compares its SHA-256.

payload: as registry/uploads/recipes.py wrote it. result {"sha256"}: the file that can be committed.
"""

from functools import partial
from typing import Any

from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.workers.context import JobContext


def prove_recipe(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the file from the store, hash it, and make it committable."""
    follow = partial(
        verify_recipe,
        context.registry,
        context.reader,
        context.job_id,
        payload,
        report=context.report,
        check_cancel=context.check_cancel,
    )
    context.step("follow recipe", follow)
    return {"sha256": payload["sha256"]}
