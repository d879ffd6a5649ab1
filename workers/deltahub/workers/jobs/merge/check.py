"""Whether models can be merged, and what the merge will cost, by a sample of them."""

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.nearness import U16, nearness, to_bf16
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import COMPARE
from deltahub.methods.merging.estimate import Estimate
from deltahub.registry.results.inputs import InputModel, InputTensor
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.evaluate import check_examples
from deltahub.workers.jobs.merge.files import branch_files
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.own_bytes import exact_bytes, fine_tune_bytes, kept_bytes
from deltahub.workers.jobs.merge.passes.make import check_memory, memory_needed
from deltahub.workers.jobs.merge.passes.measure import Tensors, measure
from deltahub.workers.jobs.merge.passes.outcomes import STATIC_METHODS, takes_parts
from deltahub.workers.jobs.merge.passes.parts import BUFFER_BYTES, check_finite, read_elements

# The largest tensors are sampled, at their middle.
N_SAMPLED: Final = 8
# Of the weights of two trainings from scratch about 7 % are near each other by chance. Small models
# that were trained long after their base may have little more.
MIN_NEARNESS: Final = 0.1
SAMPLE_BYTES: Final = 1 << 18
SAMPLE_COLUMNS: Final = 256
# What the process takes besides the tensors.
PROCESS_BYTES: Final = 400 << 20


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: refuses models that cannot be merged, and estimates the rest.

    {"counts": name -> elements of each merged tensor, "files": branch -> its safetensors files,
    "files_bytes": of all fine-tunes, "kept_bytes", "exact_bytes": of all branches with the tensors
    that are not merged, and if they are exact, "device": where models run, "estimate": Estimate}
    """
    models = load_models(context, arguments)
    models.refuse_deep_base()
    _refuse_equal_models(models)
    device = check_examples(context, models)
    memory = _check_memory(models)
    kept = sum(kept_bytes(context, models, task) for task in models.tasks)
    exact = sum(exact_bytes(context, models, task) for task in models.tasks)
    estimate = _estimate(context, models, memory, (kept, exact))
    require_room(context.registry, estimate.merge_bytes, "the merge needs")
    merged = {name: models.base.tensors[name] for name in models.plan.merged}
    branches = {MAIN: models.base, **models.tasks}
    return {
        "counts": {
            name: tensor.ref.size // DType.from_name(tensor.ref.dtype).itemsize
            for name, tensor in merged.items()
        },
        "files": {
            ref: [file.path for file in branch_files(model) if file.recipe is not None]
            for ref, model in branches.items()
        },
        "files_bytes": sum(
            file.recipe.size
            for model in models.tasks.values()
            for file in model.files
            if file.recipe is not None
        ),
        "kept_bytes": kept,
        "exact_bytes": exact,
        "device": device,
        "estimate": estimate.model_dump(mode="json"),
    }


def _refuse_equal_models(models: MergeModels) -> None:
    names = models.plan.merged
    base = [models.base.tensors[name].ref.tensor for name in names]
    known: dict[tuple[bytes, ...], InputModel] = {}
    for model in models.tasks.values():
        contents = tuple(model.tensors[name].ref.tensor for name in names)
        if list(contents) == base:
            raise CannotMerge(
                f"{model.title} is the base itself in every tensor that would be merged: leave it"
                " out"
            )
        if contents in known:
            raise CannotMerge(
                f"{model.title} and {known[contents].title} have the same bytes in every tensor"
                " that would be merged: name each fine-tune once"
            )
        known[contents] = model


def _check_memory(models: MergeModels) -> int:
    """What the job takes at most; CannotMerge if a method needs whole tensors, and one is larger
    than the memory that it may take.
    """
    method = models.arguments.method
    if method in ("emr", "lossless") or takes_parts(method):
        return PROCESS_BYTES + BUFFER_BYTES
    counts = {
        name: tensor.ref.size // DType.from_name(tensor.ref.dtype).itemsize
        for name, tensor in models.base.tensors.items()
        if name in models.plan.merged and models.is_changed(name)
    }
    largest = max(counts, key=counts.__getitem__)
    check_memory(largest, counts[largest], len(models.tasks))
    return PROCESS_BYTES + memory_needed(counts[largest], len(models.tasks))


def _estimate(
    context: ComputeContext, models: MergeModels, memory: int, unmerged: tuple[int, int]
) -> Estimate:
    """Refuses models that are no fine-tunes of the base, by the same sample. unmerged: kept and
    exact bytes, as `check` returns them.
    """
    arguments = models.arguments
    method = "emr" if arguments.method in (COMPARE, "lossless") else arguments.method
    names = [name for name in models.plan.merged if models.is_changed(name)]
    names.sort(key=lambda name: (-models.base.tensors[name].ref.size, name))
    near: dict[str, list[float]] = {task: [] for task in models.tasks}
    sampled = main = branches = 0
    duration_s = 0.0
    for name in names[:N_SAMPLED]:
        tensors = _sample(context, models, name)
        compared = _bf16(tensors.dtype, tensors.base)
        for task, words in tensors.tasks.items():
            near[task].append(float(nearness(_bf16(tensors.dtype, words), compared)))
        started = time.monotonic()
        effort = context.registry.settings.effort
        found = measure(arguments, method, tensors, effort, context.threads)
        duration_s += time.monotonic() - started
        sampled += len(tensors.base)
        main += found.n_bytes.get(MAIN, 0)
        branches += sum(n for ref, n in found.n_bytes.items() if ref != MAIN)
    _refuse_strangers(models, near)
    size = sum(models.base.tensors[name].ref.size for name in names)
    n_tasks, share = len(models.tasks), size / max(sampled, 1)
    kept, exact = unmerged
    lossy = 0 if method in STATIC_METHODS else round(branches * share) + kept
    has_main = arguments.method != "lossless"
    return Estimate(
        method=arguments.method,
        n_tasks=n_tasks,
        merged_bytes=size,
        fine_tunes_bytes=sum(fine_tune_bytes(context, models, task) for task in models.tasks),
        main_bytes=round(main * share) if has_main else 0,
        branches_bytes=exact if arguments.is_exact else lossy,
        lossy_bytes=lossy if arguments.lossless else None,
        read_bytes=size * (n_tasks + 1) + 3 * n_tasks * size,
        memory_bytes=memory,
        # What is measured is merging and coding; everything is also read, put, read back, hashed.
        seconds=round(3 * duration_s * share, 1),
    )


def _bf16(dtype: DType, words: memoryview) -> U16:
    """The words as BF16, by way of doubles, because F8 words are not cast otherwise."""
    values: npt.NDArray[np.float64] = np.empty(len(words) // dtype.itemsize, np.float64)
    widen_words(WORD_KINDS[dtype], words, values)
    return to_bf16(DType.F64, values.data.cast("B"))


def _sample(context: ComputeContext, models: MergeModels, name: str) -> Tensors:
    """The middle of a tensor, as rows of a matrix."""
    base, tasks = models.inputs(name)
    dtype = DType.from_name(base.ref.dtype)
    count = min(base.ref.size, SAMPLE_BYTES) // dtype.itemsize
    columns = min(count, SAMPLE_COLUMNS)
    count -= count % columns
    first = (base.ref.size // dtype.itemsize - count) // 2

    def read(tensor: InputTensor) -> memoryview:
        return read_elements(context, tensor, dtype, first, count)

    titles = [models.base.title, *(task.title for task in models.tasks.values())]
    near, *tuned = map(read, [base, *tasks])
    for each, title in zip([near, *tuned], titles, strict=True):
        check_finite(WORD_KINDS[dtype], each, name, title)
    words = dict(zip(models.tasks, tuned, strict=True))
    return Tensors(name, dtype, (count // columns, columns), near, words)


def _refuse_strangers(models: MergeModels, near: dict[str, list[float]]) -> None:
    for task, shares in near.items():
        if shares and sum(shares) / len(shares) < MIN_NEARNESS:
            raise CannotMerge(
                f"{models.tasks[task].title} is no fine-tune of {models.base.title}: only"
                f" {sum(shares) / len(shares):.0%} of its largest tensors' elements are near the"
                " base's. Name the model that all of them were made from as the base"
            )
