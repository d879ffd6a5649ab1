"""The models of a merge, as one step of the job reads them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltahub.codecs.frames.base_choice import TensorInfo
from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.merging.plan import MergePlan, plan_merge
from deltahub.registry.errors import InvalidName, InvalidRequest
from deltahub.registry.names import validate_ref
from deltahub.registry.packs.reading.chain import VIEW_DEPTH
from deltahub.registry.results.asked import Granted, granted
from deltahub.registry.results.inputs import InputModel, InputTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.time_limit import time_limit
from deltahub.workers.jobs.merge.adapters import full_model, inputs_of

MAIN: Final = "main"
# Dtypes of matrices that were quantized. Tables of indexes have 64 bits.
QUANTIZED: Final = ("I8", "U8", "I16", "U16", "I32", "U32")
# Longest time to match expressions with all names of a model.
MATCHING_S: Final = 20.0
# Weights in formats that are not merged. A branch without them cannot be loaded by mistake.
OTHER_WEIGHTS: Final = (
    ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pkl", ".pickle", ".ot",
    ".npz", ".tflite", ".bin.index.json",
)  # fmt: skip


@dataclass(frozen=True)
class MergeModels:
    """base; tasks: branch of the result -> fine-tune; plan: which tensors are merged.

    adapters: branch -> the adapter that its fine-tune was made from. longest_chain: of deltas that
    the made tensors may end. They are two deltas above the base, but for a unified tensor that has
    the bytes of a stored one, whose chain may be longer.
    """

    arguments: MergeArguments
    granted: Granted
    base: InputModel
    tasks: Mapping[str, InputModel]
    adapters: Mapping[str, InputModel]
    plan: MergePlan
    longest_chain: int

    def refuse_deep_base(self) -> None:
        """CannotMerge if the base itself is a branch of a merge.

        A mask is a delta of the unified tensor, and that of the base's.
        """
        deepest = max(self.plan.merged, key=lambda name: self.base.tensors[name].depth)
        depth = self.base.tensors[deepest].depth
        if depth + VIEW_DEPTH > self.longest_chain:
            raise CannotMerge(
                f"{self.base.title} is itself stored as differences, {deepest} of"
                f" {depth} others, and branches of this merge would need more than the"
                f" hub's {self.longest_chain}: push the base's files to a new repository, and take"
                " that as the base"
            )

    def inputs(self, name: str) -> tuple[InputTensor, list[InputTensor]]:
        """A merged tensor: the base's, and that of each task."""
        return self.base.tensors[name], [task.tensors[name] for task in self.tasks.values()]

    def is_changed(self, name: str) -> bool:
        base, tasks = self.inputs(name)
        return any(task.ref.tensor != base.ref.tensor for task in tasks)


def load_models(context: ComputeContext, step: Mapping[str, Any]) -> MergeModels:
    """The models, if the job's user may still read them. The errors of `granted`, `load_model` and
    `plan_merge`.

    step: the arguments of a step, with the tensors of the adapters (adapters.Contents).
    """
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("models")
    if isinstance(known, MergeModels) and known.granted == grant:
        return known
    arguments = MergeArguments.model_validate(grant.arguments)
    base, *fine_tunes = inputs_of(context, grant.revisions)
    names = task_names(arguments, [model.name for model in fine_tunes])
    tasks = dict(zip(names, fine_tunes, strict=True))
    adapters = {}
    for number, contents in step["adapters"].items():
        task = names[int(number) - 1]
        adapters[task] = tasks[task]
        tasks[task] = full_model(context, grant.domain_id, (base, tasks[task]), contents)
    infos = {name: _infos(model) for name, model in tasks.items()}
    scales = _other_scales(base, tasks)
    with time_limit(MATCHING_S, "matching the expressions of exclude"):
        _refuse_quantized(base, tasks, arguments.exclude)
        plan = plan_merge(_infos(base), infos, arguments.exclude, scales)
    _check_dtypes(arguments, base, tasks, plan)
    longest = context.registry.settings.max_depth + VIEW_DEPTH
    models = MergeModels(arguments, grant, base, tasks, adapters, plan, longest)
    context.memo["models"] = models
    return models


def _refuse_quantized(
    base: InputModel, tasks: Mapping[str, InputModel], exclude: Sequence[str]
) -> None:
    """CannotMerge for weights that were quantized to integers.

    Integers are not merged, but the floating-point scales beside them would be: each task would
    have its own integers, with scales that belong to none. A matrix that is the base's own is a
    table or a mask, or was not trained.
    """
    patterns = [re.compile(pattern) for pattern in exclude]
    for task in tasks.values():
        for name, tensor in task.tensors.items():
            if tensor.ref.dtype not in QUANTIZED or len(tensor.ref.shape) != 2:
                continue
            own = base.tensors.get(name)
            is_same = own is not None and own.ref.tensor == tensor.ref.tensor
            if not is_same and not any(pattern.search(name) for pattern in patterns):
                raise CannotMerge(
                    f"{name} of {task.title} has dtype {tensor.ref.dtype}, and is not the base's:"
                    " weights that were quantized to integers cannot be merged. Merge the models"
                    " that they were quantized from, and quantize the result"
                )


def _other_scales(base: InputModel, tasks: Mapping[str, InputModel]) -> dict[str, str]:
    """FP8 tensors whose scales are not the same in all models, and these scales: why not merged.

    The elements of an FP8 tensor mean something only times the scales in a tensor beside it.
    """
    found = {}
    for name, tensor in base.tensors.items():
        if not tensor.ref.dtype.startswith("F8_"):
            continue
        for scale in [each for each in base.tensors if each.startswith(f"{name}_scale")]:
            same = base.tensors[scale].ref.tensor
            others = (task.tensors.get(scale) for task in tasks.values())
            if all(other is not None and other.ref.tensor == same for other in others):
                continue
            found[name] = f"its FP8 scales in {scale} are not the same in all models"
            found[scale] = f"it scales {name}, which is not merged"
    return found


def _check_dtypes(
    arguments: MergeArguments, base: InputModel, tasks: Mapping[str, InputModel], plan: MergePlan
) -> None:
    """CannotMerge if a method that makes each branch's tensors meets several dtypes."""
    if arguments.method not in ("bitdelta", "low-rank"):
        return
    for task, name in ((task, name) for task in tasks.values() for name in plan.merged):
        own, other = base.tensors[name].ref.dtype, task.tensors[name].ref.dtype
        if own != other:
            raise CannotMerge(
                f"{name} of {task.title} has dtype {other}, and the base's {own}:"
                f" {arguments.method} takes models of one dtype; emr takes both"
            )


def task_names(arguments: MergeArguments, models: Sequence[str]) -> list[str]:
    """The branch of each fine-tune. models: their names, `namespace/name`."""
    if arguments.tasks is not None:
        names = [validate_ref(name) for name in arguments.tasks]
        if len(names) != len(models):
            raise InvalidRequest(f"{len(names)} tasks for {len(models)} models: name one for each")
        if len(set(names)) != len(names) or MAIN in names:
            raise InvalidRequest("two tasks have the same name, or one is main, the unified model")
        return names
    names = []
    for model in models:
        short = model.partition("/")[2]
        name, number = short, 2
        while name in names or name == MAIN:
            name, number = f"{short}-{number}", number + 1
        try:
            names.append(validate_ref(name))
        except InvalidName as exc:
            raise InvalidRequest(f"{exc}: choose the names of the branches by tasks") from exc
    return names


def _infos(model: InputModel) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(name, tensor.ref.dtype, tensor.ref.shape)
        for name, tensor in model.tensors.items()
    }
