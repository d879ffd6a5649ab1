"""The first pass: elects the unified model, a pack of tensors at a time."""

from typing import Any

from deltahub.codecs._native import elect_unified
from deltahub.codecs.frames.encode import encode_frame
from deltahub.methods.merging.emr import Sums, add_sums
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.tensors import MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import MAIN, MergeModels, load_models
from deltahub.workers.jobs.merge.passes.parts import PartReader, plan_of


def unify(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the tensors of one pack, from the merged tensor number `first` on.

    {"next": number of the first tensor of the next pack, or None, "tensors": {"main": name ->
    content id in hex}, "sums": name -> task -> as Sums.to_list}
    """
    models = load_models(context, arguments)
    names = models.plan.merged
    first: int = arguments["first"]
    total = sum(models.base.tensors[name].ref.size for name in names)
    done = sum(models.base.tensors[name].ref.size for name in names[:first])
    made: dict[str, str] = {}
    sums: dict[str, list[list[float]]] = {}
    position = first
    grant = models.granted
    with MadePack(context.registry, context.reader, grant.domain_id, context.job_id) as pack:
        while position < len(names) and pack.size_bytes < context.registry.settings.pack_bytes:
            name = names[position]
            if models.is_changed(name):
                content, found = _unify_tensor(context, models, name, pack)
                made[name] = content.hex()
                sums[name] = [each.to_list() for each in found]
            position += 1
            done += models.base.tensors[name].ref.size
            context.report("unify", done, total)
        pack.store(models.longest_chain)
    following = position if position < len(names) else None
    return {"next": following, "tensors": {MAIN: made}, "sums": sums}


def _unify_tensor(
    context: ComputeContext, models: MergeModels, name: str, pack: MadePack
) -> tuple[bytes, list[Sums]]:
    """(content id, sums of each task)"""
    base, tasks = models.inputs(name)
    settings = context.registry.settings
    reader = PartReader(context, [base, *tasks])
    titles = [models.base.title, *(task.title for task in models.tasks.values())]
    sums: list[list[Sums]] = [[] for _ in tasks]
    with MadeTensor(context.registry) as made:
        for part in reader.parts(n_more_buffers=3):
            for words, title in zip(part.words, titles, strict=True):
                reader.check_finite(words, name, title)
            near, *tuned = part.words
            out = memoryview(bytearray(len(near)))
            found = elect_unified(reader.kind, near, [*tuned], out, context.threads)
            for task_sums, each in zip(sums, found, strict=True):
                task_sums.append(Sums.of_list(part.range.count, each))
            frame = encode_frame(
                reader.spec,
                part.range,
                out,
                near,
                plan_of(base.ref.tensor, reader.spec.dtype, part.range),
                "delta",
                context.threads,
                settings.effort,
            )
            made.add(frame, out)
        content = _own_or_added(made, base, pack, generation_of(settings.effort))
    return content, [add_sums(each) for each in sums]


def _own_or_added(made: MadeTensor, base: InputTensor, pack: MadePack, tried: int) -> bytes:
    """The tensor's content id. A tensor that came out as the base's is not stored again."""
    return made.content if made.content == base.ref.tensor else pack.add(made, tried)
