"""The job `extract_adapter`: its steps, in their order.

1. Find the matrices that the fine-tune changed, and what else it changed.
2. With an error to keep: find the rank.
3. Decompose the differences, a pack of factors at a time.
4. Make the file with these factors, which has to be hashed, and publish the repository.

result {"name", "commit", "extraction"}, or {"extraction"} of a dry run.
"""

from typing import Any, Final

from deltahub.methods.adapters.extraction import MAX_RANK, rank_within
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.registry.errors import InvalidRequest
from deltahub.workers.context import JobContext

_STEPS: Final = "deltahub.workers.jobs.adapters.extract_steps"
DEFAULT_RANK: Final = 16
# Shares of the job: until the models are read, until the rank is known, and all factors made.
_READ, _KNOWN, _MADE = 0.02, 0.4, 0.95


def extract_adapter(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = ExtractAdapterArguments.model_validate(payload["arguments"])
    checked = context.compute("look at the models", f"{_STEPS}:check", {}, (0, _READ))
    rank, begun = arguments.rank or DEFAULT_RANK, _READ
    if arguments.error is not None:
        lost = [
            each
            for part in context.compute_parts(f"{_STEPS}:measure", {}, (_READ, _KNOWN))
            for each in part["tails"]
        ]
        found = context.step("choose the rank", lambda: rank_within(lost, arguments.error or 0))
        if found is None:
            raise InvalidRequest(
                f"no rank up to {MAX_RANK} keeps the changes within {arguments.error:.2%}: allow a"
                " larger error, or keep the fine-tune, which the hub stores as a difference"
            )
        rank, begun = found, _KNOWN
    rank = min(rank, checked["most"])
    if arguments.dry_run:
        return {"extraction": checked["extraction"] | {"rank": rank}}
    made = context.compute_parts(f"{_STEPS}:extract", {"rank": rank}, (begun, _MADE))
    tensors = [tensor for part in made for tensor in part["made"]]
    row = context.compute("file", f"{_STEPS}:make_file", {"made": tensors}, (_MADE, 0.99))
    sums = {key: sum(part[key] for part in made) for key in ("lost", "changed")}
    given = {"row": row, "rank": rank, "sums": sums}
    result: dict[str, Any] = context.compute("publish", f"{_STEPS}:publish", given, (0.99, 1))
    context.tell_memory()
    return result
