"""The report of a merge, and the repository that it becomes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from deltahub.methods.kinds.merge import OPTIONS
from deltahub.methods.merging import emr
from deltahub.methods.merging.emr import Sums
from deltahub.methods.merging.report import (
    MergeReport,
    TaskReport,
    TensorErrors,
    fidelity,
    relative_error,
    to_markdown,
    worst_tensors,
)
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict
from deltahub.registry.results import publish as results
from deltahub.registry.results.asked import granted_in
from deltahub.registry.results.publish import Branch, Result
from deltahub.registry.results.stored import stored_bytes, stored_tensors
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.files import CARD, ERRORS, REPORT, branch_files, model_of
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.own_bytes import exact_bytes, fine_tune_bytes, kept_bytes
from deltahub.workers.jobs.merge.passes.outcomes import STATIC_METHODS
from deltahub.workers.jobs.merge.sums import sums_of_json

# A scale above this says that other tasks dominate.
LARGE_SCALE = 2.0


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: writes report and cards, and makes the repository with all branches at once.

    arguments: counts: name -> elements, sums: name -> task -> as Sums.to_list, tensors: branch ->
    name -> content id of made tensors, files: branch -> path -> row. {"name", "commit", "report"}
    """
    models = load_models(context, arguments)
    name = models.arguments.name
    assert name is not None, "the schema asks for a name of all methods but compare"
    report = _report(context, models, arguments)
    texts = {
        CARD: _card(models.base.name, to_markdown(report, name)),
        REPORT: (json.dumps(report.model_dump(mode="json"), indent=1) + "\n").encode(),
    }
    if not models.arguments.is_exact:
        errors = _errors(models, report, arguments)
        texts[ERRORS] = (errors.model_dump_json() + "\n").encode()
    grant = models.granted
    refs = [MAIN] if models.arguments.method in STATIC_METHODS else [MAIN, *models.tasks]
    result = Result(
        name,
        grant.is_private,
        "merge",
        (f"{models.base.name}@{models.base.commit}", models.base.revision_id),
        [_branch(models, report, ref, arguments["files"].get(ref, {}), texts) for ref in refs],
    )

    def check(session: WriteSession) -> None:
        if granted_in(session, context.registry.settings, context.job_id) != grant:
            raise Conflict("what the job may read or make has changed while it ran: retry it")

    commit = results.publish(context.registry, grant.caller, context.job_id, result, check)
    return {"name": name, "commit": commit, "report": report.model_dump(mode="json")}


def _branch(
    models: MergeModels,
    report: MergeReport,
    ref: str,
    made: Mapping[str, int],
    of_main: Mapping[str, bytes],
) -> Branch:
    """made: path -> row of the files that were made. of_main: texts that main alone has."""
    kept = branch_files(model_of(models, ref))
    files = {file.path: made.get(file.path, file.row) for file in kept}
    names = [model.name for model in models.tasks.values()]
    if ref == MAIN:
        parents = [model.revision_id for model in models.tasks.values()]
        return Branch(ref, f"Merge {', '.join(names)}", files, of_main, parents)
    (task,) = [each for each in report.tasks if each.branch == ref]
    fine_tune = models.tasks[ref]
    error = "It is exact." if task.is_exact else f"Its relative error is {task.relative_error:.3f}."
    body = (
        f"# {models.arguments.name}@{ref}\n\nThe task {ref} of a merge ({report.method}) of"
        f" `{fine_tune.name}` and others. {error} The card of `main` tells of all tasks.\n"
    )
    texts = {CARD: _card(models.base.name, body)}
    return Branch(ref, f"The task {ref}", files, texts, [fine_tune.revision_id])


def _card(base: str, body: str) -> bytes:
    front = f"---\nbase_model: {base}\nbase_model_relation: merge\ntags:\n- merge\n---\n"
    return (front + body).encode()


def _scales(models: MergeModels, sums: Mapping[str, Sums]) -> dict[str, float]:
    """Tensor -> scale of one task, by which its merged vector is multiplied when it is used."""
    if models.arguments.method == "emr":
        return emr.scales(models.arguments.rescaler, sums)
    return dict.fromkeys(sums, 1.0)


def _errors(models: MergeModels, report: MergeReport, arguments: Mapping[str, Any]) -> TensorErrors:
    found: dict[str, list[float]] = {}
    for number in range(len(report.tasks)):
        sums = sums_of_json(arguments["counts"], arguments["sums"], number)
        scales = _scales(models, sums)
        for name, each in sums.items():
            found.setdefault(name, []).append(relative_error(each, scales[name]))
    return TensorErrors(
        tasks=[task.branch for task in report.tasks],
        models=[task.model for task in report.tasks],
        relative_errors=found,
    )


def _report(
    context: ComputeContext, models: MergeModels, arguments: Mapping[str, Any]
) -> MergeReport:
    given = models.arguments
    counts: dict[str, int] = arguments["counts"]
    made: dict[str, dict[str, str]] = arguments["tensors"]
    base = {tensor.ref.tensor.hex() for tensor in models.base.tensors.values()}
    main = set(made.get(MAIN, {}).values()) - base
    is_exact = given.is_exact
    is_static = given.method in STATIC_METHODS
    tasks, warnings = [], []
    for number, (task, model) in enumerate(models.tasks.items()):
        kept = models.plan.kept[task]
        if is_exact:
            branch_bytes = exact_bytes(context, models, task)
        elif is_static:
            branch_bytes = 0
        else:
            of_task = made.get(task, {})
            own = {of_task[name] for name in models.plan.merged if name in of_task} - base - main
            branch_bytes = _made_bytes(context, models, own) + kept_bytes(context, models, task)
        report = TaskReport(
            branch=MAIN if is_static else task,
            model=f"{model.name}@{model.commit}",
            is_exact=is_exact,
            kept_tensors=len(kept),
            fine_tune_bytes=fine_tune_bytes(context, models, task),
            branch_bytes=branch_bytes,
        )
        absent = [name for name in models.base.tensors if name not in model.tensors]
        if absent:
            warnings.append(
                f"{model.name} lacks {len(absent)} tensors of the base, such as {min(absent)}: they"
                " are not merged, and its branch lacks them too"
            )
        if is_static and kept:
            warnings.append(
                f"{len(kept)} tensors of {model.name} are not merged, such as {min(kept)}: main has"
                " the base's"
            )
        if not is_exact:
            sums = sums_of_json(counts, arguments["sums"], number)
            is_emr = given.method == "emr"
            scales = _scales(models, sums)
            error, cosine = fidelity(sums, scales)
            total = emr.add_sums(list(sums.values()))
            values = set(scales.values())
            if max(values) > LARGE_SCALE:
                warnings.append(
                    f"{task}: its scale is {max(values):.2f}, so other tasks dominate the merge"
                )
            report = report.model_copy(
                update={
                    "relative_error": error,
                    "cosine": cosine,
                    "scale": values.pop() if is_emr and len(values) == 1 else None,
                    "mask_share": total.n_masked / total.size if is_emr else None,
                    "changed_share": total.n_changed / total.size,
                    "worst": worst_tensors(sums, scales),
                }
            )
        tasks.append(report)
    return MergeReport(
        method=given.method,
        rescaler=given.rescaler if given.method == "emr" else None,
        base=f"{models.base.name}@{models.base.commit}",
        fine_tunes_bytes=sum(task.fine_tune_bytes for task in tasks),
        main_bytes=_made_bytes(context, models, main),
        branches_bytes=sum(task.branch_bytes for task in tasks),
        merged_tensors=len(counts),
        merged_elements=sum(counts.values()),
        warnings=warnings,
        tasks=tasks,
        options={
            name: list(value) if isinstance(value, tuple) else value
            for name in (*OPTIONS.get(given.method, ()), "exclude")
            if (value := getattr(given, name)) is not None
        },
    )


def _made_bytes(context: ComputeContext, models: MergeModels, contents: Iterable[str]) -> int:
    """contents: content ids in hex of tensors that the job made."""
    wanted = map(bytes.fromhex, contents)
    rows = stored_tensors(context.registry, models.granted.domain_id, wanted)
    return stored_bytes(context.registry, rows.values())
