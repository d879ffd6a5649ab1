"""The job `prove_recipe`: a client's recipe is followed, and believed if its SHA-256 comes out.

payload as registry/uploads/recipes.py wrote it; result {"sha256"}: the file that can be committed.
"""

from functools import partial
from typing import Any

from deltahub.registry.ingest.prove_recipe import prove_recipe
from deltahub.workers.context import JobContext


def prove_recipe_job(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rebuild the file from the store, hash it, and make it committable."""
    follow = partial(
        prove_recipe,
        context.registry,
        context.reader,
        context.job_id,
        payload,
        report=context.report,
        check_cancel=context.check_cancel,
    )
    context.step("follow recipe", follow)
    return {"sha256": payload["sha256"]}
