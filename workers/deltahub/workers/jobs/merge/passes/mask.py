"""The second pass: a task's tensors as masks over base and unified model."""

from collections.abc import Mapping
from typing import Any

from deltahub.codecs._native import merge_task
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_plan import join_plans
from deltahub.codecs.frames.encode import encode_frame
from deltahub.codecs.masks.codec import Masks
from deltahub.methods.errors import CannotMerge
from deltahub.registry.packs.encoder_generation import standalone_generation
from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.stored import stored_tensors
from deltahub.registry.results.tensors import MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import MergeModels, load_models
from deltahub.workers.jobs.merge.passes.parts import PartReader, plan_of


def mask(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the tensors of one pack of a task, from the merged tensor number `first` on.

    arguments: task, first, unified: name -> content id in hex, scales: name -> number.
    {"next": as unify, "tensors": name -> content id in hex}
    """
    models = load_models(context, arguments)
    names = models.plan.merged
    task: str = arguments["task"]
    first: int = arguments["first"]
    unified: Mapping[str, str] = arguments["unified"]
    grant = models.granted
    total = sum(models.base.tensors[name].ref.size for name in names)
    done = sum(models.base.tensors[name].ref.size for name in names[:first])
    made: dict[str, str] = {}
    position = first
    rows = stored_tensors(
        context.registry, grant.domain_id, {bytes.fromhex(each) for each in unified.values()}
    )
    with MadePack(context.registry, context.reader, grant.domain_id, context.job_id) as pack:
        while position < len(names) and pack.size_bytes < context.registry.settings.pack_bytes:
            name = names[position]
            if name in unified:
                content = bytes.fromhex(unified[name])
                base = models.base.tensors[name]
                whole = InputTensor(base.ref, rows[content], base.depth + 1)
                scale = float(arguments["scales"][name])
                inputs = (base, content, whole)
                made[name] = _mask_tensor(context, models, (task, name), inputs, scale, pack).hex()
            position += 1
            done += models.base.tensors[name].ref.size
            context.report(f"branch {task}", done, total)
        pack.store(models.longest_chain)
    return {"next": position if position < len(names) else None, "tensors": made}


def _mask_tensor(
    context: ComputeContext,
    models: MergeModels,
    place: tuple[str, str],
    inputs: tuple[InputTensor, bytes, InputTensor],
    scale: float,
    pack: MadePack,
) -> bytes:
    """The content id of a task's tensor. place: task and name. inputs: base, content id of the
    unified tensor, and the unified tensor.
    """
    task, name = place
    base, content, unified = inputs
    tuned = models.tasks[task].tensors[name]
    own = DType.from_name(base.ref.dtype)
    is_unmoved = tuned.ref.tensor == base.ref.tensor or content == base.ref.tensor
    if is_unmoved and tuned.ref.dtype == base.ref.dtype:
        return base.ref.tensor
    reader = PartReader(context, [base, unified, tuned], dtype_of=tuned)
    dtype = reader.spec.dtype
    with MadeTensor(context.registry) as made:
        for part in reader.parts(n_more_buffers=5):
            near, whole, words = part.words
            out = memoryview(bytearray(len(near)))
            n_infinite = merge_task(reader.kind, near, whole, words, scale, out, context.threads)
            if n_infinite:
                raise CannotMerge(
                    f"{name} of {models.tasks[task].title}: times its scale {scale:.3f}, the merge"
                    f" has {n_infinite} elements that {dtype.name} cannot hold; choose another"
                    " rescaler, or exclude the tensor"
                )
            both = memoryview(bytearray(2 * len(near)))
            both[: len(near)], both[len(near) :] = near, whole
            plan = join_plans(
                [plan_of(each, dtype, part.range, own) for each in (base.ref.tensor, content)]
            )
            frame = encode_frame(
                reader.spec, part.range, out, both, plan, Masks(scale), context.threads
            )
            made.add(frame, out)
        if made.content in (base.ref.tensor, content):
            return made.content
        return pack.add(made, standalone_generation())
