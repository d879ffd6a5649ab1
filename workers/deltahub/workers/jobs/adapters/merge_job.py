"""The job `merge_adapter`: its steps, in their order.

1. Check that the adapter is a plain LoRA of its base.
2. Make the tensors of base plus adapter, as deltas of the base's, a pack at a time.
3. Make the base's files with these tensors, which have to be hashed.
4. Commit them to the branch `merged` of the adapter's repository.

result {"name", "commit", "branch", "stored_bytes"}, or {"estimate"} of a dry run.
"""

from typing import Any, Final

from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.adapters.merge_steps"
# Shares of the job: until both are loaded, until all tensors are made, and all files hashed.
_LOADED, _MADE, _HASHED = 0.02, 0.5, 0.98


def merge_adapter(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = MergeAdapterArguments.model_validate(payload["arguments"])
    checked = context.compute("look at the adapter", f"{_STEPS}:check", {}, (0, _LOADED))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    tensors: dict[str, str] = {}
    first: int | None = 0
    while first is not None:
        step = f"{_STEPS}:merge_part"
        done = context.compute(f"merge from {first}", step, {"first": first}, (_LOADED, _MADE))
        tensors |= done["tensors"]
        first = done["next"]
    files: dict[str, int] = {}
    paths: list[str] = checked["paths"]
    share = (_HASHED - _MADE) / max(len(paths), 1)
    for number, path in enumerate(paths):
        span = (_MADE + number * share, _MADE + (number + 1) * share)
        given = {"path": path, "tensors": tensors}
        files[path] = context.compute(f"file {path}", f"{_STEPS}:make_file", given, span)
    given = {"files": files, "tensors": tensors}
    result: dict[str, Any] = context.compute("commit", f"{_STEPS}:publish", given, (_HASHED, 1))
    context.tell_memory()
    return result
