"""The pass of all methods but emr: tensors of main, or of each branch, as deltas of the base."""

import resource
from contextlib import ExitStack
from typing import Any, Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.encode import FrameRange, encode_frame, split_frames
from deltahub.methods.errors import CannotMerge
from deltahub.methods.merging.emr import Sums, add_sums
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.tensors import MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import MergeModels, load_models
from deltahub.workers.jobs.merge.passes.outcomes import MAIN, STATIC_METHODS, outcome, takes_parts
from deltahub.workers.jobs.merge.passes.parts import PartReader, plan_of

# Arrays of doubles of a whole tensor that a method holds for each model, and besides.
_ARRAYS_EACH: Final = 3
_ARRAYS_MORE: Final = 6


def make(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the tensors of one pack, from the merged tensor number `first` on.

    {"next": number of the first tensor of the next pack, or None, "tensors": branch -> name ->
    content id in hex, "sums": name -> task -> as Sums.to_list}
    """
    models = load_models(context, arguments)
    names = models.plan.merged
    first: int = arguments["first"]
    total = sum(models.base.tensors[name].ref.size for name in names)
    done = sum(models.base.tensors[name].ref.size for name in names[:first])
    tensors: dict[str, dict[str, str]] = {}
    sums: dict[str, list[list[float]]] = {}
    position = first
    grant = models.granted
    with MadePack(context.registry, context.reader, grant.domain_id, context.job_id) as pack:
        while position < len(names) and pack.size_bytes < context.registry.settings.pack_bytes:
            name = names[position]
            if models.is_changed(name):
                contents, found = _make_tensor(context, models, name, pack)
                for ref, content in contents.items():
                    tensors.setdefault(ref, {})[name] = content.hex()
                sums[name] = [each.to_list() for each in found]
            position += 1
            done += models.base.tensors[name].ref.size
            context.report("merge", done, total)
        pack.store(models.longest_chain)
    return {
        "next": position if position < len(names) else None,
        "tensors": tensors,
        "sums": sums,
    }


def _make_tensor(
    context: ComputeContext, models: MergeModels, name: str, pack: MadePack
) -> tuple[dict[str, bytes], list[Sums]]:
    """(branch -> content id, sums of each task)"""
    base, tasks = models.inputs(name)
    method = models.arguments.method
    reader = PartReader(context, [base, *tasks])
    refs = [MAIN] if method in STATIC_METHODS else list(models.tasks)
    titles = [models.base.title, *(task.title for task in models.tasks.values())]
    sums: list[list[Sums]] = [[] for _ in tasks]
    with ExitStack() as stack:
        made = {ref: stack.enter_context(MadeTensor(context.registry)) for ref in refs}
        is_whole = not takes_parts(method)
        if is_whole:
            check_memory(name, base.ref.size // reader.spec.dtype.itemsize, len(tasks))
        for part in reader.whole() if is_whole else reader.parts(n_more_buffers=20):
            for words, title in zip(part.words, titles, strict=True):
                reader.check_finite(words, name, title)
            near, *tuned = part.words
            shape = tuple(base.ref.shape) if is_whole else (part.range.count,)
            task_words = dict(zip(models.tasks, tuned, strict=True))
            found = outcome(
                models.arguments, method, name, (reader.spec.dtype, shape, near, task_words)
            )
            if found.n_infinite:
                raise CannotMerge(
                    f"{name}: the merge has {found.n_infinite} elements that"
                    f" {reader.spec.dtype.name} cannot hold; choose a smaller scale, or exclude it"
                )
            for task_sums, each in zip(sums, found.sums, strict=True):
                task_sums.append(each)
            for ref, words in found.made.items():
                _encode(context, models, (reader, name, part.range), (near, words), made[ref])
        generation = generation_of(context.registry.settings.effort)
        contents = {}
        for ref, tensor in made.items():
            is_base = tensor.content == base.ref.tensor
            contents[ref] = tensor.content if is_base else pack.add(tensor, generation)
    return contents, [add_sums(each) for each in sums]


def _encode(
    context: ComputeContext,
    models: MergeModels,
    place: tuple[PartReader, str, FrameRange],
    words: tuple[memoryview, memoryview],
    made: MadeTensor,
) -> None:
    """Add the frames of a part. place: its reader, tensor and range. words: the base's, and new."""
    reader, name, part = place
    near, new = words
    size = reader.spec.dtype.itemsize
    content = models.base.tensors[name].ref.tensor
    is_whole = part.count == reader.spec.count
    for frame in split_frames(reader.spec) if is_whole else [part]:
        first = (frame.start - part.start) * size
        span = slice(first, first + frame.count * size)
        plan = plan_of(content, reader.spec.dtype, frame)
        effort = context.registry.settings.effort
        data = encode_frame(
            reader.spec, frame, new[span], near[span], plan, "delta", context.threads, effort
        )
        made.add(data, new[span])


def memory_needed(count: int, n_tasks: int) -> int:
    """Bytes that a method takes for a whole tensor of `count` elements."""
    return count * DType.F64.itemsize * (_ARRAYS_EACH * (n_tasks + 1) + _ARRAYS_MORE)


def check_memory(name: str, count: int, n_tasks: int) -> None:
    """CannotMerge if the process may not take the memory for a whole tensor of doubles."""
    needed = memory_needed(count, n_tasks)
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise CannotMerge(
            f"{name} would need {needed >> 20} MiB of memory, and the job may take {limit >> 20}:"
            " exclude it, choose emr, which takes tensors in parts, or let the operator raise"
            " DELTAHUB_WORKER_COMPUTE_MEMORY_BYTES"
        )
