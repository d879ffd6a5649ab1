"""The report of a merge, and the repository that it becomes."""

import json
from collections.abc import Mapping
from typing import Any

from deltahub.methods.merging import emr
from deltahub.methods.merging.report import (
    MergeReport,
    TaskReport,
    fidelity,
    to_markdown,
    worst_tensors,
)
from deltahub.registry.results import publish as results
from deltahub.registry.results.publish import Branch, Result
from deltahub.registry.results.stored import stored_bytes
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.check import own_bytes
from deltahub.workers.jobs.merge.files import CARD, REPORT, branch_files, model_of
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.sums import sums_of_json

# A scale above this says that other tasks dominate.
LARGE_SCALE = 2.0


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: writes report and cards, and makes the repository with all branches at once.

    arguments: unified: name -> content id, sums: task -> name -> sums, masks: task -> name ->
    content id, files: branch -> path -> row. {"name", "commit", "report"}
    """
    models = load_models(context)
    report = _report(context, models, arguments)
    name = models.arguments.name
    grant = models.granted
    result = Result(
        name,
        grant.is_private,
        "merge",
        (f"{models.base.name}@{models.base.commit}", models.base.revision_id),
        [
            _branch(models, report, ref, arguments["files"].get(ref, {}))
            for ref in (MAIN, *models.tasks)
        ],
    )
    commit = results.publish(context.registry, grant.caller, context.job_id, result)
    return {"name": name, "commit": commit, "report": report.model_dump(mode="json")}


def _branch(models: MergeModels, report: MergeReport, ref: str, made: Mapping[str, int]) -> Branch:
    files = {
        file.path: made.get(file.path, file.row) for file in branch_files(model_of(models, ref))
    }
    names = [model.name for model in models.tasks.values()]
    name = models.arguments.name
    if ref == MAIN:
        body = to_markdown(report, name)
        texts = {
            CARD: _card(models.base.name, body),
            REPORT: (json.dumps(report.model_dump(mode="json"), indent=1) + "\n").encode(),
        }
        parents = [model.revision_id for model in models.tasks.values()]
        return Branch(ref, f"Merge {', '.join(names)}", files, texts, parents)
    (task,) = [each for each in report.tasks if each.branch == ref]
    fine_tune = models.tasks[ref]
    body = (
        f"# {name}@{ref}\n\nThe task {ref} of a merge: `{fine_tune.name}`, rebuilt from the unified"
        f" model with a mask and a scale. Its relative error is {task.relative_error:.3f}. The card"
        " of `main` tells of all tasks.\n"
    )
    texts = {CARD: _card(models.base.name, body)}
    return Branch(ref, f"The task {ref}", files, texts, [fine_tune.revision_id])


def _card(base: str, body: str) -> bytes:
    front = f"---\nbase_model: {base}\nbase_model_relation: merge\ntags:\n- merge\n---\n"
    return (front + body).encode()


def _report(
    context: ComputeContext, models: MergeModels, arguments: Mapping[str, Any]
) -> MergeReport:
    domain = models.granted.domain_id
    rescaler = models.arguments.rescaler
    counts: dict[str, int] = arguments["counts"]
    base = {tensor.ref.tensor.hex() for tensor in models.base.tensors.values()}
    unified = set(arguments["unified"].values()) - base
    tasks, warnings = [], []
    for number, (task, model) in enumerate(models.tasks.items()):
        sums = sums_of_json(counts, arguments["sums"], number)
        scales = emr.scales(rescaler, sums)
        error, cosine = fidelity(sums, scales)
        total = emr.add_sums(list(sums.values()))
        own = set(arguments["masks"][task].values()) - base - unified
        values = set(scales.values())
        if max(values) > LARGE_SCALE:
            warnings.append(
                f"{task}: its scale is {max(values):.2f}, so other tasks dominate the merge"
            )
        tasks.append(
            TaskReport(
                branch=task,
                model=f"{model.name}@{model.commit}",
                scale=values.pop() if len(values) == 1 else None,
                relative_error=error,
                cosine=cosine,
                mask_share=total.n_masked / total.size,
                changed_share=total.n_changed / total.size,
                kept_tensors=len(models.plan.kept[task]),
                fine_tune_bytes=own_bytes(context, models, task),
                mask_bytes=stored_bytes(context.registry, domain, own),
                worst=worst_tensors(sums, scales),
            )
        )
    return MergeReport(
        method=models.arguments.method,
        rescaler=rescaler,
        base=f"{models.base.name}@{models.base.commit}",
        fine_tunes_bytes=sum(task.fine_tune_bytes for task in tasks),
        unified_bytes=stored_bytes(context.registry, domain, unified),
        masks_bytes=sum(task.mask_bytes for task in tasks),
        merged_tensors=len(counts),
        merged_elements=sum(counts.values()),
        warnings=warnings,
        tasks=tasks,
    )
