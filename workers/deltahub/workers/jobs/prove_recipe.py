"""The job `prove_recipe`: rebuilds a file by a client's recipe and verifies its SHA-256.

payload: as deltahub.registry.uploads.recipes writes it; result {"sha256"}: the file, which can be
committed now.
"""

from functools import partial
from typing import Any

from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.workers.context import JobContext


def prove_recipe_job(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the file from stored tensors, verify its hash, and make it committable."""
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
