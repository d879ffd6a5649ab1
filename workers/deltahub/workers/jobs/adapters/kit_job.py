"""The job `pissa_init`: its steps, in their order.

1. Find the matrices to adapt, and a kit that was made of them before with the same arguments.
2. Decompose the weights one after the other, a pack of factors at a time.
3. Make the file with these factors, which has to be hashed.
4. Publish the repository.

The residual of the base is never stored: whoever trains makes it from the base and the factors.
result {"name", "commit", "kit", "is_found": the hub had the kit already}, or {"estimate"} of a dry
run.
"""

from typing import Any, Final

from deltahub.methods.adapters.kit import KitEstimate
from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.adapters.kit_steps"
# Shares of the job: until the base is loaded, and until all factors are made.
_LOADED, _MADE = 0.02, 0.95


def pissa_init(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = PissaInitArguments.model_validate(payload["arguments"])
    checked = context.compute("look at the base", f"{_STEPS}:check", {}, (0, _LOADED))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    estimate = KitEstimate.model_validate(checked["estimate"])
    context.step("tell the cost", lambda: _tell(context, estimate.sentences()))
    if checked["known"] is not None:
        known: dict[str, Any] = checked["known"]
        return {**known, "is_found": True}
    parts = context.compute_parts(f"{_STEPS}:decompose", {}, (_LOADED, _MADE))
    made = [tensor for part in parts for tensor in part["made"]]
    modules = [module for part in parts for module in part["modules"]]
    row = context.compute("file", f"{_STEPS}:make_file", {"made": made}, (_MADE, 0.99))
    given = {"row": row, "modules": modules, "key": checked["key"], "name": checked["name"]}
    result: dict[str, Any] = context.compute("publish", f"{_STEPS}:publish", given, (0.99, 1))
    context.tell_memory()
    return {**result, "is_found": False}


def _tell(context: JobContext, sentences: list[str]) -> None:
    for sentence in sentences:
        context.log(sentence)
