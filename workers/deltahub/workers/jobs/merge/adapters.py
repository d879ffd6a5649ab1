"""Adapters among the models of a merge: they are merged into the base first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltahub.codecs._native import narrow_doubles, widen_words
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.encode import encode_frame, split_frames
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.adapters.lora import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Change,
    LoraConfig,
    changes_of,
    merged_weight,
    parse_config,
)
from deltahub.methods.adapters.names import BaseNames, Kind, part_of
from deltahub.methods.errors import CannotMerge
from deltahub.methods.merging.static import Values
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.asked import granted
from deltahub.registry.results.inputs import (
    InputModel,
    InputTensor,
    load_model,
    read_input,
)
from deltahub.registry.results.stored import stored_tensors
from deltahub.registry.results.tensors import MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.time_limit import time_limit
from deltahub.workers.jobs.merge.passes.parts import plan_of, read_elements, spec_of

# Longest time to match the patterns of an adapter with all of its modules.
MATCHING_S: Final = 20.0
# Elements of two tensors that are compared at once.
_COMPARED: Final = 1 << 20

Contents = Mapping[str, Mapping[str, str]]
"""number of a model -> name -> content id in hex of the tensors of base plus adapter"""


def is_adapter(model: InputModel) -> bool:
    return any(file.path == CONFIG_FILE for file in model.files)


def find(context: ComputeContext, arguments: dict[str, Any]) -> list[int]:
    """Step: the numbers of the models that are adapters. The base is number 0."""
    grant = granted(context.registry, context.job_id)
    models = inputs_of(context, grant.revisions)
    if is_adapter(models[0]):
        raise CannotMerge(f"{models[0].title} is an adapter: name the model that it belongs to")
    found = [number for number, model in enumerate(models) if is_adapter(model)]
    for number in found:
        context.log(f"{models[number].title} is an adapter: it is merged into the base first")
    return found


def merge_adapter(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: tensors of base plus the adapter `number`, a pack of them, from number `first` on.

    {"next": as in the passes, "tensors": name -> content id in hex}
    """
    grant = granted(context.registry, context.job_id)
    models = inputs_of(context, grant.revisions)
    both = (models[0], models[arguments["number"]])
    return merge_tensors(context, both, grant.domain_id, arguments["first"])


@dataclass(frozen=True)
class Parsed:
    """What an adapter does. changes: tensor of the base -> how; alphas: of each module."""

    config: LoraConfig
    changes: Mapping[str, Change]
    alphas: Mapping[str, float]


def parsed(context: ComputeContext, base: InputModel, adapter: InputModel) -> Parsed:
    """The adapter's configuration for this base. CannotMerge if it is no plain LoRA of it."""
    config = parse_config(
        read_input(context.registry, context.reader, adapter, CONFIG_FILE), adapter.title
    )
    changes = changes_of(adapter.tensors.keys(), base.tensors.keys(), adapter.title)
    require_equal_copies(context, base, adapter)
    with time_limit(MATCHING_S, f"matching alpha_pattern of {adapter.title}"):
        alphas = config.scales_of({change.module for change in changes.values()})
    return Parsed(config, changes, alphas)


def require_equal_copies(context: ComputeContext, base: InputModel, adapter: InputModel) -> None:
    """CannotMerge if a copy of a weight of the base, beside the adapter, is not that weight."""
    names = BaseNames(base.tensors.keys())
    for name, copy in adapter.tensors.items():
        part = part_of(name)
        if part.kind != Kind.BASE_COPY:
            continue
        targets = names.find(f"{part.module}.weight")
        own = base.tensors[targets[0]] if len(targets) == 1 else None
        if own is None or not _are_equal(context, own, copy):
            raise CannotMerge(
                f"{name} of {adapter.title} is not the weight of {base.title}, for example because"
                " the vocabulary was made larger: merge it where it was trained, and push the full"
                " model"
            )


def _are_equal(context: ComputeContext, one: InputTensor, other: InputTensor) -> bool:
    if one.ref.tensor == other.ref.tensor and one.ref.dtype == other.ref.dtype:
        return True
    if one.ref.shape != other.ref.shape:
        return False
    specs = [spec_of(each) for each in (one, other)]
    if not all(spec.dtype.is_float for spec in specs):
        return False
    for first in range(0, specs[0].count, _COMPARED):
        count = min(_COMPARED, specs[0].count - first)
        own, copy = (
            _widened(spec.dtype, read_elements(context, each, spec.dtype, first, count))
            for spec, each in zip(specs, (one, other), strict=True)
        )
        if not np.array_equal(own, copy):
            return False
    return True


def merge_tensors(
    context: ComputeContext, models: tuple[InputModel, InputModel], domain_id: int, first: int
) -> dict[str, Any]:
    """Store tensors of base plus adapter, a pack of them, from number `first` on.

    models: base and adapter. {"next": as in the passes, "tensors": name -> content id in hex}
    """
    base, adapter = models
    found = parsed(context, base, adapter)
    names = [name for name in base.tensors if name in found.changes]
    if not names:
        raise CannotMerge(f"{adapter.title} changes no tensor of {base.title}")
    position = first
    made: dict[str, str] = {}
    with MadePack(context.registry, context.reader, domain_id, context.job_id) as pack:
        while position < len(names) and pack.size_bytes < context.registry.settings.pack_bytes:
            name = names[position]
            rule = (found.alphas, found.config, found.changes[name])
            made[name] = _merge_tensor(context, models, name, rule, pack).hex()
            position += 1
            context.report(f"merge {adapter.name}", position, len(names))
        pack.store(max(base.tensors[name].depth for name in names) + 1)
    return {"next": position if position < len(names) else None, "tensors": made}


def full_model(
    context: ComputeContext,
    domain_id: int,
    models: tuple[InputModel, InputModel],
    contents: Mapping[str, str],
) -> InputModel:
    """The base with an adapter merged into it, as a model. models: base and adapter."""
    base, adapter = models
    wanted = {name: bytes.fromhex(content) for name, content in contents.items()}
    rows = stored_tensors(context.registry, domain_id, set(wanted.values()))
    tensors = dict(base.tensors)
    for name, content in wanted.items():
        known = base.tensors[name]
        depth = known.depth + (content != known.ref.tensor)
        tensors[name] = InputTensor(replace(known.ref, tensor=content), rows[content], depth)
    own = [file for file in adapter.files if file.path not in (CONFIG_FILE, WEIGHTS_FILE)]
    paths = {file.path for file in own}
    files = [*own, *(file for file in base.files if file.path not in paths)]
    return replace(adapter, files=tuple(files), tensors=tensors)


def inputs_of(context: ComputeContext, revisions: Sequence[int]) -> list[InputModel]:
    """The models of these revisions, as they were pushed."""
    known = context.memo.get("inputs")
    if isinstance(known, list) and [each.revision_id for each in known] == list(revisions):
        return known
    found = [load_model(context.registry, context.reader, row, context.job_id) for row in revisions]
    context.memo["inputs"] = found
    return found


def _merge_tensor(
    context: ComputeContext,
    models: tuple[InputModel, InputModel],
    name: str,
    rule: tuple[Mapping[str, float], LoraConfig, Change],
    pack: MadePack,
) -> bytes:
    """The content id of a tensor of base plus adapter, in the base's dtype."""
    base, adapter = models[0].tensors[name], models[1]
    alphas, config, change = rule
    spec = spec_of(base)
    if not spec.dtype.is_float:
        raise CannotMerge(f"{name} of the base has dtype {spec.dtype.name}: an adapter cannot be"
                          " merged into it; push a base with floating-point weights")  # fmt: skip
    near = read_elements(context, base, spec.dtype, 0, spec.count)
    if change.whole is not None:
        whole = adapter.tensors[change.whole]
        if whole.ref.shape != base.ref.shape:
            raise CannotMerge(
                f"{change.whole} of {adapter.title} has shape {list(whole.ref.shape)}, the base"
                f" {list(base.ref.shape)}: merge it with PEFT, and push the full model"
            )
        values = _values(context, whole)
    else:
        assert change.down is not None
        assert change.up is not None
        factors = [_values(context, adapter.tensors[each]) for each in (change.down, change.up)]
        weight = _widened(spec.dtype, near).reshape(base.ref.shape)
        scale = config.scale(alphas[change.module], factors[0].shape[0])
        both = (factors[0], factors[1])
        values = merged_weight(scale, config.is_transposed, change, weight, both)
    words = memoryview(bytearray(spec.size_bytes))
    if narrow_doubles(WORD_KINDS[spec.dtype], np.ascontiguousarray(values).ravel(), words):
        raise CannotMerge(f"{name}: base plus {adapter.title} has infinite or NaN elements")
    effort = context.registry.settings.effort
    with MadeTensor(context.registry) as made:
        for part in split_frames(spec):
            size = spec.dtype.itemsize
            span = slice(part.start * size, (part.start + part.count) * size)
            plan = plan_of(base.ref.tensor, spec.dtype, part)
            data = (words[span], near[span])
            made.add(
                encode_frame(spec, part, *data, plan, "delta", context.threads, effort), data[0]
            )
        if made.content == base.ref.tensor:
            return made.content
        return pack.add(made, generation_of(effort))


def _values(context: ComputeContext, tensor: InputTensor) -> Values:
    dtype = DType.from_name(tensor.ref.dtype)
    count = tensor.ref.size // dtype.itemsize
    words = read_elements(context, tensor, dtype, 0, count)
    return _widened(dtype, words).reshape(tensor.ref.shape)


def _widened(dtype: DType, words: memoryview) -> Values:
    out: npt.NDArray[np.float64] = np.empty(len(words) // dtype.itemsize, np.float64)
    widen_words(WORD_KINDS[dtype], words, out)
    return out
