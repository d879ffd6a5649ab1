"""The bytes that the hub stores for fine-tunes and branches, without their base's."""

from collections.abc import Iterable

from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.stored import stored_bytes
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import MergeModels


def fine_tune_bytes(context: ComputeContext, models: MergeModels, task: str) -> int:
    """Of the fine-tune as it was pushed; of an adapter, of the adapter."""
    model = models.adapters.get(task, models.tasks[task])
    return _beyond_base(context, models, model.tensors.values())


def exact_bytes(context: ComputeContext, models: MergeModels, task: str) -> int:
    """Of a branch that is the fine-tune; of an adapter, of the base with it merged."""
    return _beyond_base(context, models, models.tasks[task].tensors.values())


def kept_bytes(context: ComputeContext, models: MergeModels, task: str) -> int:
    """Of a branch's tensors that are not merged."""
    tensors = models.tasks[task].tensors
    return _beyond_base(context, models, (tensors[name] for name in models.plan.kept[task]))


def _beyond_base(
    context: ComputeContext, models: MergeModels, tensors: Iterable[InputTensor]
) -> int:
    base = {tensor.ref.tensor for tensor in models.base.tensors.values()}
    rows = {tensor.row for tensor in tensors if tensor.ref.tensor not in base}
    return stored_bytes(context.registry, rows)
