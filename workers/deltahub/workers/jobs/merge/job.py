"""The job `merge`: its steps, in their order.

1. Check the models, and estimate the cost.
2. Unify, a pack of tensors at a time (unify.py), which also gives each task's sums.
3. Make each branch's tensors as masks (mask.py), and its files, which have to be hashed (files.py).
4. Publish the repository with all branches at once (publish.py).

Steps record content ids and sums, never bytes: a killed job goes on at its first unfinished step.
result {"name", "commit", "report"}, or {"estimate"} of a dry run.
"""

from typing import Any, Final

from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.merging import emr
from deltahub.methods.merging.estimate import Estimate
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.merge.sums import sums_of_json

_HERE: Final = "deltahub.workers.jobs.merge"


def merge(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = MergeArguments.model_validate(payload["arguments"])
    checked = context.compute("check the models", f"{_HERE}.check:check", {}, (0, 0.02))
    estimate = Estimate.model_validate(checked["estimate"])
    context.step("tell the cost", lambda: _tell(context, estimate))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    tasks: list[str] = [ref for ref in checked["files"] if ref != "main"]
    # A branch is read, made, hashed and written: about as much work as a pass over one more model.
    share = 0.96 / (2 + len(tasks) + 1)

    unified: dict[str, str] = {}
    sums: dict[str, list[list[float]]] = {}
    first: int | None = 0
    while first is not None:
        done = context.compute(
            f"unify from {first}",
            f"{_HERE}.unify:unify",
            {"first": first},
            (0.02, 0.02 + 2 * share),
        )
        for name, (content, each) in done["tensors"].items():
            unified[name], sums[name] = content, each
        first = done["next"]

    masks: dict[str, dict[str, str]] = {}
    files: dict[str, dict[str, int]] = {}
    at = 0.02 + 2 * share
    for number, task in enumerate(tasks):
        scales = emr.scales(arguments.rescaler, sums_of_json(checked["counts"], sums, number))
        masks[task] = {}
        first = 0
        while first is not None:
            step = {"task": task, "first": first, "unified": unified, "scales": scales}
            span = (at, at + share / 2)
            done = context.compute(f"branch {task} from {first}", f"{_HERE}.mask:mask", step, span)
            masks[task] |= done["tensors"]
            first = done["next"]
        files[task] = _make_files(
            context, task, checked["files"][task], masks[task], (at + share / 2, at + share)
        )
        at += share
    files["main"] = _make_files(
        context, "main", checked["files"]["main"], unified, (at, at + share)
    )
    made = {
        "counts": checked["counts"],
        "unified": unified,
        "sums": sums,
        "masks": masks,
        "files": files,
    }
    result: dict[str, Any] = context.compute("publish", f"{_HERE}.publish:publish", made, (0.98, 1))
    return result


def _tell(context: JobContext, estimate: Estimate) -> None:
    for sentence in estimate.sentences():
        context.log(sentence)


def _make_files(
    context: JobContext,
    ref: str,
    paths: list[str],
    tensors: dict[str, str],
    share: tuple[float, float],
) -> dict[str, int]:
    rows = {}
    for path in paths:
        step = {"ref": ref, "path": path, "tensors": tensors}
        rows[path] = context.compute(
            f"file {path} of {ref}", f"{_HERE}.files:make_file", step, share
        )
    return rows
