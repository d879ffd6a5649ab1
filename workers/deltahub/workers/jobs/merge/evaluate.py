"""Accuracy of what a method makes: the models are written out, loaded and asked."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deltahub.codecs._native import elect_unified, merge_task
from deltahub.codecs.dtypes import DType
from deltahub.methods.errors import CannotMerge
from deltahub.methods.evaluation.exact_match import (
    accuracy,
    check_model,
    device_of,
    require_packages,
)
from deltahub.methods.kinds.merge import Example
from deltahub.registry.errors import Unavailable
from deltahub.registry.results.inputs import MAX_SMALL_FILE, InputModel, read_input
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.files import branch_files
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.passes.make import check_memory
from deltahub.workers.jobs.merge.passes.outcomes import REBUILT_METHODS, STATIC_METHODS, outcome
from deltahub.workers.jobs.merge.passes.parts import PartReader, read_elements

CONFIG: Final = "config.json"


def evaluate(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, float]:
    """Step: task -> the share of its examples that the method's model answers exactly.

    arguments: method, scales: task -> name -> scale of emr, device: as check_examples returned it.
    """
    models = load_models(context, arguments)
    method: str = arguments["method"]
    require_packages()
    device = _device_again(context, models, arguments["device"])
    found: dict[str, float] = {}
    is_static = method in STATIC_METHODS
    folder = context.folder() / "model"
    for number, task in enumerate(models.tasks):
        examples = examples_of(models, task)
        if not examples:
            continue
        model = models.base if is_static else models.tasks[task]
        kind = check_model(read_input(context.registry, context.reader, model, CONFIG), model.title)
        if not (is_static and found):  # else all tasks have one model, which is there
            shutil.rmtree(folder, ignore_errors=True)
            scales = arguments["scales"].get(task, {})
            _write_model(context, models, method, (task, model), scales, folder)
        found[task] = accuracy(folder, examples, kind, device)
        context.report(f"evaluate {method}", number + 1, len(models.tasks))
    shutil.rmtree(folder, ignore_errors=True)
    return found


def examples_of(models: MergeModels, task: str) -> list[Example]:
    """Those of the task, and those of no task."""
    return [each for each in models.arguments.eval or () if each.task in (task, None)]


def check_examples(context: ComputeContext, models: MergeModels) -> str | None:
    """Where the models of all methods run, "cpu" or "cuda"; None if the job runs none.

    CannotMerge for examples of tasks that there are not, and for models that cannot be run.
    """
    if models.arguments.eval is None:
        return None
    require_packages()
    device = device_of(context.device(models.arguments.device))
    unknown = {each.task for each in models.arguments.eval} - models.tasks.keys() - {None}
    if unknown:
        raise CannotMerge(
            f"an example is of the task {sorted(map(str, unknown))[0]!r}; there are"
            f" {', '.join(models.tasks)}"
        )
    for model in (models.base, *models.tasks.values()):
        if all(file.path != CONFIG for file in model.files):
            raise CannotMerge(f"{model.title} has no {CONFIG}, so it cannot be evaluated")
        check_model(read_input(context.registry, context.reader, model, CONFIG), model.title)
    return device.partition(":")[0]


def _device_again(context: ComputeContext, models: MergeModels, began_on: str) -> str:
    """The device on which the job began, also in another worker: a GPU rounds in another way than a
    CPU, and the methods are to be compared. Unavailable, which begins the job again, without one.
    """
    if began_on == "cpu":
        return "cpu"
    device = device_of(context.device(models.arguments.device))
    if device == "cpu":
        raise Unavailable("the models of this job ran on a GPU, and this worker has none")
    return device


def _write_model(
    context: ComputeContext,
    models: MergeModels,
    method: str,
    place: tuple[str, InputModel],
    scales: Mapping[str, float],
    folder: Path,
) -> None:
    """place: the task, and the model whose other files and tensors the made one has."""
    task, model = place
    small = [
        file
        for file in branch_files(model)
        if file.recipe is None
        and not file.path.endswith(".index.json")
        # Larger files are no part of a model that transformers loads.
        and file.size <= MAX_SMALL_FILE
    ]
    n_bytes = sum(tensor.ref.size for tensor in model.tensors.values())
    n_bytes += sum(file.size for file in small)
    require_room(context.registry, n_bytes, f"a model to ask ({method}) needs")
    folder.mkdir()
    for file in small:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_input(context.registry, context.reader, model, file.path))
    merged = set(models.plan.merged)
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in model.tensors.items():
        # What is merged has the base's dtype here, whatever a branch's would be.
        source = models.base.tensors[name] if name in merged else tensor
        end = offset + source.ref.size
        header[name] = {
            "dtype": source.ref.dtype,
            "shape": list(source.ref.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in model.tensors.items():
            if name in merged:
                out.write(_made(context, models, method, (task, name), scales))
            else:
                dtype = DType.from_name(tensor.ref.dtype)
                count = tensor.ref.size // dtype.itemsize
                out.write(read_elements(context, tensor, dtype, 0, count))


def _made(
    context: ComputeContext,
    models: MergeModels,
    method: str,
    place: tuple[str, str],
    scales: Mapping[str, float],
) -> memoryview:
    """The words of a merged tensor as the method makes it. place: task and name."""
    task, name = place
    base, tasks = models.inputs(name)
    reader = PartReader(context, [base, *tasks])
    check_memory(name, reader.spec.count, len(tasks))
    (part,) = reader.whole()
    near, *tuned = part.words
    words: Mapping[str, memoryview] = dict(zip(models.tasks, tuned, strict=True))
    if method == "lossless":
        return words[task]
    if method == "emr":
        return _emr_words(reader.kind, near, words, (task, scales[name]), context.threads)
    if method in REBUILT_METHODS:
        words = {task: words[task]}  # the others say nothing to it, and take as long
    given = (reader.spec.dtype, tuple(base.ref.shape), near, words)
    made = outcome(models.arguments, method, name, given).made
    return made[MAIN if method in STATIC_METHODS else task]


def _emr_words(
    kind: int,
    near: memoryview,
    words: Mapping[str, memoryview],
    wanted: tuple[str, float],
    threads: int,
) -> memoryview:
    task, scale = wanted
    unified, out = memoryview(bytearray(len(near))), memoryview(bytearray(len(near)))
    tuned: Sequence[memoryview] = [*words.values()]
    elect_unified(kind, near, [*tuned], unified, threads)
    merge_task(kind, near, unified, words[task], scale, out, threads)
    return out
