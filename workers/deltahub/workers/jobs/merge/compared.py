"""The result of `compare`, from what its steps have measured."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.merging import emr
from deltahub.methods.merging.frontier import Candidate, compare, to_svg
from deltahub.methods.merging.report import fidelity
from deltahub.workers.jobs.merge.passes.outcomes import STATIC_METHODS
from deltahub.workers.jobs.merge.sums import sums_of_json


def compared(
    arguments: MergeArguments,
    checked: Mapping[str, Any],
    n_bytes: Mapping[str, Mapping[str, int]],
    sums: Mapping[str, Mapping[str, list[list[float]]]],
    accuracies: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """The result of the job. n_bytes, sums: by method, as steps return them."""
    n_tasks = len(checked["files"]) - 1
    now: int = checked["estimate"]["fine_tunes_bytes"]
    candidates = [
        Candidate(
            method="lossless",
            n_bytes=checked["exact_bytes"],
            relative_error=0,
            cosine=1,
            worst_error=0,
            accuracy=_mean(accuracies.get("lossless")),
            is_static=False,
        )
    ]
    for method, of_branches in n_bytes.items():
        found = []
        for number in range(n_tasks):
            of_task = sums_of_json(checked["counts"], sums[method], number)
            is_emr = method == "emr"
            scales = (
                emr.scales(arguments.rescaler, of_task) if is_emr else dict.fromkeys(of_task, 1.0)
            )
            found.append(fidelity(of_task, scales))
        errors = [error for error, _ in found]
        is_static = method in STATIC_METHODS
        candidates.append(
            Candidate(
                method=method,
                n_bytes=sum(of_branches.values()) + (0 if is_static else checked["kept_bytes"]),
                relative_error=fmean(errors),
                cosine=fmean(cosine for _, cosine in found),
                worst_error=max(errors),
                accuracy=_mean(accuracies.get(method)),
                is_static=is_static,
            )
        )
    result = compare(candidates, checked["files_bytes"], now, arguments.budget)
    return {"comparison": result.model_dump(mode="json"), "picture": to_svg(result)}


def _mean(accuracies: Mapping[str, float] | None) -> float | None:
    return fmean(accuracies.values()) if accuracies else None
