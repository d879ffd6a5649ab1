"""Whether models can be merged, and what the merge will cost, by a sample of them."""

import time
from typing import Any, Final

import numpy as np

from deltahub.codecs._native import elect_unified
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import MIN_NEARNESS
from deltahub.codecs.frames.encode import TensorSpec, encode_frame, split_frames
from deltahub.codecs.frames.nearness import nearness, to_bf16
from deltahub.codecs.masks.codec import DTYPES
from deltahub.codecs.protocol import Effort
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.errors import CannotMerge
from deltahub.methods.merging.estimate import Estimate
from deltahub.registry.results.inputs import InputModel
from deltahub.registry.results.stored import stored_bytes
from deltahub.registry.results.tensors import UNNAMED
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.files import branch_files
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.parts import BUFFER_BYTES, plan_of

# The largest tensors are sampled, at their middle.
N_SAMPLED: Final = 8
SAMPLE_BYTES: Final = 1 << 18


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: refuses models that cannot be merged, and estimates the rest.

    {"sizes": name -> bytes of each merged tensor, "counts": name -> elements, "files": branch ->
    paths to make, "estimate": Estimate}
    """
    models = load_models(context)
    _refuse_equal_models(models)
    estimate = _estimate(context, models)
    require_room(context.registry, estimate.merge_bytes)
    merged = {name: models.base.tensors[name] for name in models.plan.merged}
    branches = {MAIN: models.base, **models.tasks}
    return {
        "counts": {name: tensor.ref.size // _itemsize(tensor.ref.dtype)
                   for name, tensor in merged.items()},
        "size": sum(tensor.ref.size for tensor in merged.values()),
        "files": {
            ref: [file.path for file in branch_files(model) if file.recipe is not None]
            for ref, model in branches.items()
        },
        "estimate": estimate.model_dump(mode="json"),
    }  # fmt: skip


def _itemsize(dtype: str) -> int:
    return DType.from_name(dtype).itemsize


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
                f"{model.title} and {known[contents].title} are the same model: name each fine-tune"
                " once"
            )
        known[contents] = model


def _estimate(context: ComputeContext, models: MergeModels) -> Estimate:
    """Refuses models that are no fine-tunes of the base, by the same sample."""
    started = time.monotonic()
    names = [name for name in models.plan.merged if models.is_changed(name)]
    names.sort(key=lambda name: (-models.base.tensors[name].ref.size, name))
    near: dict[str, list[float]] = {task: [] for task in models.tasks}
    sampled = unified = active = n = 0
    for name in names[:N_SAMPLED]:
        base, tasks = models.inputs(name)
        dtype = DType.from_name(base.ref.dtype)
        assert dtype in DTYPES, "the plan merges no others"
        count = min(base.ref.size, SAMPLE_BYTES) // dtype.itemsize
        first = (base.ref.size // dtype.itemsize - count) // 2 * dtype.itemsize
        words = []
        for tensor in (base, *tasks):
            out = memoryview(bytearray(count * dtype.itemsize))
            context.reader.read_tensor_into(tensor.row, first, out)
            words.append(out)
        compared = to_bf16(dtype, words[0])
        for task, each in zip(near, words[1:], strict=True):
            near[task].append(float(nearness(to_bf16(dtype, each), compared)))
        out = memoryview(bytearray(count * dtype.itemsize))
        elect_unified(WORD_KINDS[dtype], words[0], [*words[1:]], out, context.threads)
        spec = TensorSpec(UNNAMED, dtype, 1, count)
        (part,) = split_frames(spec)
        plan = plan_of(base.ref.tensor, dtype, part)
        frame = encode_frame(spec, part, out, words[0], plan, "delta", context.threads, Effort.FAST)
        kind = f"u{dtype.itemsize}"
        active += int(np.count_nonzero(np.frombuffer(out, kind) != np.frombuffer(words[0], kind)))
        sampled, unified, n = sampled + len(out), unified + len(frame), n + count
    _refuse_strangers(models, near)
    duration_s = time.monotonic() - started
    size = sum(models.base.tensors[name].ref.size for name in names)
    changed = sum(
        models.base.tensors[name].ref.size // _itemsize(models.base.tensors[name].ref.dtype)
        for name in names
    )
    n_tasks = len(models.tasks)
    share = size / max(sampled, 1)
    return Estimate(
        n_tasks=n_tasks,
        merged_bytes=size,
        fine_tunes_bytes=sum(own_bytes(context, models, task) for task in models.tasks),
        unified_bytes=round(unified * share),
        masks_bytes=round(n_tasks * changed * active / max(n, 1) / 8),
        read_bytes=size * (n_tasks + 1) + 3 * n_tasks * size,
        memory_bytes=BUFFER_BYTES + (400 << 20),
        # The sample is elected and coded once; each branch is read, made and hashed as well.
        seconds=round(duration_s * share * (1 + n_tasks / 2), 1),
    )


def own_bytes(context: ComputeContext, models: MergeModels, task: str) -> int:
    """The bytes that the hub stores for a fine-tune now: what its base has not."""
    model = models.tasks[task]
    base = {tensor.ref.tensor for tensor in models.base.tensors.values()}
    own = {tensor.ref.tensor.hex() for tensor in model.tensors.values()
           if tensor.ref.tensor not in base}  # fmt: skip
    return stored_bytes(context.registry, model.domain_id, sorted(own))


def _refuse_strangers(models: MergeModels, near: dict[str, list[float]]) -> None:
    for task, shares in near.items():
        if shares and sum(shares) / len(shares) < MIN_NEARNESS:
            raise CannotMerge(
                f"{models.tasks[task].title} is no fine-tune of {models.base.title}: only"
                f" {sum(shares) / len(shares):.0%} of its largest tensors' elements are near the"
                " base's. Name the model that all of them were made from as the base"
            )
