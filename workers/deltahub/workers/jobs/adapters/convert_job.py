"""The job `convert_adapter`: its steps, in their order.

1. Look at the adapter, and find its base and the factors that it started from.
2. With an error to keep: find the rank that all updates need.
3. Make the factors of the plain LoRA, a pack at a time.
4. Make the file with them, which has to be hashed.
5. Commit it to the adapter's main, and tag the commit that was pushed.

result {"name", "commit", "conversion"}, or {"conversion"} of a dry run.
"""

from typing import Any, Final

from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.adapters.convert_steps"
# Shares of the job: until the adapter is read, until the rank is known, and all factors made.
_READ, _KNOWN, _MADE = 0.02, 0.4, 0.95


def convert_adapter(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = ConvertAdapterArguments.model_validate(payload["arguments"])
    checked = context.compute("look at the adapter", f"{_STEPS}:check", {}, (0, _READ))
    rank: int = arguments.rank or checked["rank"]
    begun = _READ
    if arguments.error is not None:
        measured = context.compute_parts(
            f"{_STEPS}:measure", {"error": arguments.error}, (_READ, _KNOWN)
        )
        rank, begun = max(each["rank"] for each in measured), _KNOWN
    rank = max(rank, checked["least"])
    if arguments.dry_run:
        return {"conversion": checked["conversion"] | {"rank": rank}}
    made = context.compute_parts(f"{_STEPS}:convert", {"rank": rank}, (begun, _MADE))
    tensors = [tensor for part in made for tensor in part["made"]]
    hashed = {"made": tensors, "cosines": [each for part in made for each in part["cosines"]]}
    row = context.compute("file", f"{_STEPS}:make_file", hashed, (_MADE, 0.99))
    error = max(part["error"] for part in made)
    given = {"row": row, "rank": rank, "error": error}
    result: dict[str, Any] = context.compute("commit", f"{_STEPS}:publish", given, (0.99, 1))
    context.tell_memory()
    return result
