"""The job `merge`: its steps, in their order.

1. Merge adapters into the base (adapters.py), check the models, and estimate the cost.
2. Make the tensors, a pack at a time (passes/): emr elects the unified model (unify.py) and then
   makes each branch's tensors as masks (mask.py); other methods make those of main, or of all
   branches (make.py); lossless makes none; compare runs all and stores nothing (compare.py).
3. Make the files with these tensors, which have to be hashed (files.py).
4. Publish the repository with all branches at once (publish.py).

Steps record content ids and sums, never bytes: a killed job goes on at its first unfinished step.
result {"name", "commit", "report"}, {"estimate"} of a dry run, or {"comparison", "picture"}.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from deltahub.methods.kinds.merge import COMPARE, MergeArguments
from deltahub.methods.merging import emr
from deltahub.methods.merging.estimate import Estimate
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.merge.compared import compared
from deltahub.workers.jobs.merge.passes.outcomes import STATIC_METHODS
from deltahub.workers.jobs.merge.sums import sums_of_json

_HERE: Final = "deltahub.workers.jobs.merge"
_PASSES: Final = f"{_HERE}.passes"
_MAIN: Final = "main"
# Shares of the job: until the models are checked, and until all but publishing is done.
_CHECKED, _MADE = 0.02, 0.98
# The same of compare, until the models of the methods answer questions, which takes longest.
_MEASURED: Final = 0.3

Tensors = dict[str, dict[str, str]]
"""branch -> name -> content id in hex of the tensors that were made"""

AllSums = dict[str, list[list[float]]]
"""name -> task -> as Sums.to_list"""


def merge(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = MergeArguments.model_validate(payload["arguments"])
    run = _Run(context, _merge_adapters(context))
    checked = run.compute("check the models", f"{_HERE}.check:check", {}, (0, _CHECKED))
    estimate = Estimate.model_validate(checked["estimate"])
    if arguments.method == COMPARE:
        return _compare(run, arguments, checked)
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    context.step("tell the cost", lambda: _tell(context, estimate.sentences()))
    tasks: list[str] = [ref for ref in checked["files"] if ref != _MAIN]
    # A branch is read, made, hashed and written: about as much work as a pass over one more model.
    share = (_MADE - _CHECKED) / (2 + len(tasks) + 1)
    passed = _CHECKED + 3 * share
    files: dict[str, dict[str, int]] = {}
    with run.timed("merged, and main made"):
        tensors, sums = _make(run, arguments, (_CHECKED, _CHECKED + 2 * share))
        if _MAIN in tensors:
            span = (_CHECKED + 2 * share, passed)
            files[_MAIN] = _make_files(run, _MAIN, checked["files"][_MAIN], tensors[_MAIN], span)
    for number, task in enumerate(tasks, 1):
        at = passed + (number - 1) * share
        # Of a full model only merged tensors are new; of an adapter all that it changes.
        own = run.adapters.get(str(number), {})
        if arguments.method == "emr" and not arguments.lossless:
            of_task = sums_of_json(checked["counts"], sums, number - 1)
            scales = emr.scales(arguments.rescaler, of_task)
            with run.timed(f"masks of {task} made"):
                made = _mask(run, task, tensors[_MAIN], scales, (at, at + share / 2))
            tensors[task] = own | made
        elif own or task in tensors:
            tensors[task] = own | tensors.get(task, {})
        if task in tensors and arguments.method not in STATIC_METHODS:
            paths, span = checked["files"][task], (at + share / 2, at + share)
            with run.timed(f"files of {task} hashed"):
                files[task] = _make_files(run, task, paths, tensors[task], span)
    given = {"counts": checked["counts"], "sums": sums, "tensors": tensors, "files": files}
    result: dict[str, Any] = run.compute("publish", f"{_HERE}.publish:publish", given, (_MADE, 1))
    context.tell_memory()
    return result


@dataclass(frozen=True)
class _Run:
    """The job, and the tensors of its adapters, which each step needs."""

    context: JobContext
    adapters: Tensors  # number of the model -> name -> content id in hex

    def compute(
        self, name: str, step: str, arguments: dict[str, Any], share: tuple[float, float]
    ) -> Any:
        given = arguments | {"adapters": self.adapters}
        return self.context.compute(name, step, given, share)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Log how long the steps inside took in this attempt."""
        began = time.monotonic()
        yield
        sentence = f"{what} in {time.monotonic() - began:.1f} s"
        self.context.step(f"tell the time: {what}", lambda: self.context.log(sentence))


def _merge_adapters(context: JobContext) -> Tensors:
    found: list[int] = context.compute("find adapters", f"{_HERE}.adapters:find", {}, (0, 0))
    adapters: Tensors = {}
    for number in found:
        made: dict[str, str] = {}
        first: int | None = 0
        while first is not None:
            step = {"number": number, "first": first}
            name = f"merge adapter {number} from {first}"
            path = f"{_HERE}.adapters:merge_adapter"
            done = context.compute(name, path, step, (0, _CHECKED))
            made |= done["tensors"]
            first = done["next"]
        adapters[str(number)] = made
    return adapters


def _tell(context: JobContext, sentences: list[str]) -> None:
    for sentence in sentences:
        context.log(sentence)


def _make(
    run: _Run, arguments: MergeArguments, share: tuple[float, float]
) -> tuple[Tensors, AllSums]:
    """The pass over all tensors; of emr, that which elects the unified model."""
    if arguments.method == "lossless":
        return {}, {}
    tensors: Tensors = {_MAIN: {}} if arguments.method == "emr" else {}
    sums: AllSums = {}
    first: int | None = 0
    while first is not None:
        step = {"first": first}
        if arguments.method == "emr":
            done = run.compute(f"unify from {first}", f"{_PASSES}.unify:unify", step, share)
        else:
            done = run.compute(f"merge from {first}", f"{_PASSES}.make:make", step, share)
        for ref, contents in done["tensors"].items():
            tensors.setdefault(ref, {}).update(contents)
        sums |= done["sums"]
        first = done["next"]
    return tensors, sums


def _mask(
    run: _Run,
    task: str,
    unified: dict[str, str],
    scales: dict[str, float],
    share: tuple[float, float],
) -> dict[str, str]:
    made: dict[str, str] = {}
    first: int | None = 0
    while first is not None:
        step = {"task": task, "first": first, "unified": unified, "scales": scales}
        done = run.compute(f"branch {task} from {first}", f"{_PASSES}.mask:mask", step, share)
        made |= done["tensors"]
        first = done["next"]
    return made


def _make_files(
    run: _Run,
    ref: str,
    paths: list[str],
    tensors: dict[str, str],
    share: tuple[float, float],
) -> dict[str, int]:
    rows = {}
    for path in paths:
        step = {"ref": ref, "path": path, "tensors": tensors}
        name = f"file {path} of {ref}"
        rows[path] = run.compute(name, f"{_HERE}.files:make_file", step, share)
    return rows


def _compare(run: _Run, arguments: MergeArguments, checked: dict[str, Any]) -> dict[str, Any]:
    n_bytes: dict[str, dict[str, int]] = {}
    sums: dict[str, AllSums] = {}
    measured = _MADE if arguments.eval is None else _MEASURED
    first: int | None = 0
    while first is not None:
        step = {"first": first}
        span = (_CHECKED, measured)
        done = run.compute(f"compare from {first}", f"{_PASSES}.compare:compare", step, span)
        for method, found in done["bytes"].items():
            known = n_bytes.setdefault(method, {})
            for ref, n in found.items():
                known[ref] = known.get(ref, 0) + n
            sums.setdefault(method, {}).update(done["sums"][method])
        first = done["next"]
    accuracies: dict[str, dict[str, float]] = {}
    asked = (*n_bytes, "lossless") if arguments.eval is not None else ()
    share = (_MADE - measured) / max(len(asked), 1)
    for place, method in enumerate(asked):
        scales: dict[str, dict[str, float]] = {}
        if method == "emr":
            tasks = [ref for ref in checked["files"] if ref != _MAIN]
            for number, task in enumerate(tasks):
                of_task = sums_of_json(checked["counts"], sums[method], number)
                scales[task] = emr.scales(arguments.rescaler, of_task)
        device = checked["device"]
        given: dict[str, Any] = {"method": method, "scales": scales, "device": device}
        path = f"{_HERE}.evaluate:evaluate"
        at = measured + place * share
        accuracies[method] = run.compute(f"evaluate {method}", path, given, (at, at + share))
    return compared(arguments, checked, n_bytes, sums, accuracies)
