"""The job `compare`: its steps, in their order.

1. Look for a comparison of the same weights; else find what differs, and what that costs.
2. Compare the tensors that differ, some at a time (steps.py).
3. Store the report (registry/results/comparisons), which is read by its id.

result {"comparison_id"}, or {"estimate"} of a dry run. What the weights say is in the report alone,
and not in the job's result or log, because its user may lose the right to read a model.
"""

import base64
from typing import Any, Final

from deltahub.methods.comparing.modules import cells_of
from deltahub.methods.comparing.report import ComparingEstimate, totals_of
from deltahub.methods.kinds.compare import CompareArguments
from deltahub.registry.results.comparisons.write import Made, known, store
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.compare.steps"
# Shares of the job: until the models are loaded, and until all but storing is done.
_LOADED, _COMPARED = 0.02, 0.98


def compare(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = CompareArguments.model_validate(payload["arguments"])
    if not arguments.dry_run:
        found = context.step("look for it", lambda: known(context.registry, context.job_id))
        if found is not None:
            context.step("tell", lambda: context.log("these weights were compared before"))
            return {"comparison_id": found}
    checked = context.compute("load the models", f"{_STEPS}:check", {}, (0, _LOADED))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    estimate = ComparingEstimate.model_validate(checked["estimate"])
    context.step("tell the cost", lambda: _tell(context, estimate))
    tensors: list[dict[str, Any]] = []
    parts: list[str] = []
    first: int | None = 0
    while first is not None:
        given = {"first": first, "number": len(parts), "side": checked["side"]}
        path = f"{_STEPS}:compare_some"
        done = context.compute(f"compare from {first}", path, given, (_LOADED, _COMPARED))
        tensors += done["tensors"]
        parts.append(done["part"])
        first = done["next"]

    def publish() -> str:
        made = Made(
            totals_of(tensors).model_dump(mode="json"),
            cells_of(tensors),
            tensors,
            [base64.b64decode(part) for part in parts],
        )
        return store(context.registry, context.job_id, made)

    context.report("store", 0, 0, _COMPARED)
    return {"comparison_id": context.step("store", publish)}


def _tell(context: JobContext, estimate: ComparingEstimate) -> None:
    for sentence in estimate.sentences():
        context.log(sentence)
