"""What the steps of a conversion read: the adapter, its base, and where its factors come from."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.olora import olora_factors
from deltahub.methods.adapters.initial.principal import (
    Weight,
    initial_factors,
    principal_spectrum,
)
from deltahub.methods.adapters.kit import KIT_FILE, Kit
from deltahub.methods.adapters.lora import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Change,
    LoraConfig,
    changes_of,
    parse_lora,
)
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.db.models import Revision
from deltahub.registry.errors import RegistryError
from deltahub.registry.results.asked import Granted, granted, readable_revision
from deltahub.registry.results.inputs import InputModel, load_model, read_input
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.time_limit import time_limit
from deltahub.workers.jobs.adapters.declared_base import (
    base_of,
    refuse_hidden_base,
    require_head,
    require_readable,
)
from deltahub.workers.jobs.adapters.tensors import read_matrix, read_values
from deltahub.workers.jobs.merge.adapters import require_equal_copies

# Longest time to match the patterns of an adapter with all of its modules.
_MATCHING_S: Final = 20.0
# Kinds whose initial factors follow from the base's weights alone.
FROM_BASE: Final = ("pissa", "olora")

Initial = Callable[[str, Change], Factors]
"""initial(tensor of the base, how it is changed): the factors that the module started from"""


@dataclass(frozen=True)
class Conversion:
    """changes: tensor of the base -> what the adapter does to it. scales: s of each linear module.
    source: where the initial factors come from, in words.
    """

    grant: Granted
    arguments: ConvertAdapterArguments
    adapter: InputModel
    base: InputModel
    config: LoraConfig
    changes: dict[str, Change]
    scales: dict[str, float]
    source: str
    initial: Initial

    @property
    def linear(self) -> list[str]:
        """The tensors of the base whose updates are converted."""
        return [
            n for n, each in self.changes.items() if each.whole is None and not each.is_embedding
        ]

    @property
    def kept(self) -> list[str]:
        """The adapter's other tensors: heads, biases and adapters of embeddings."""
        linear = {each for name in self.linear for each in _factor_names(self.changes[name])}
        return [name for name in self.adapter.tensors if name not in linear]

    def trained(self, context: ComputeContext, name: str) -> Factors:
        """A and B as they were pushed."""
        return read_factors(context, self.adapter, self.changes[name])

    def rank(self, name: str) -> int:
        return int(self.adapter.tensors[str(self.changes[name].down)].ref.shape[0])


def conversion(context: ComputeContext) -> Conversion:
    """The conversion, if the job's user may still do it. CannotAdapt, RepositoryNotFound."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("conversion")
    if isinstance(known, Conversion) and known.grant == grant:
        return known
    arguments = ConvertAdapterArguments.model_validate(grant.arguments)
    rows = list(grant.revisions)
    adapter = _load(context, rows.pop(0))
    require_head(context, grant.caller, adapter)
    config = _config(context, adapter, has_init=arguments.init is not None)
    base = _base(context, grant, adapter, rows.pop(0) if arguments.base is not None else None)
    if arguments.base is None:
        _require_pinned(context, grant, adapter, base, config.raw.get("revision"))
    changes = changes_of(adapter.tensors.keys(), base.tensors.keys(), adapter.title, is_kept=True)
    _check_shapes(adapter, base, config, changes)
    require_equal_copies(context, base, adapter)
    with time_limit(_MATCHING_S, f"matching alpha_pattern of {adapter.title}"):
        alphas = config.scales_of({change.module for change in changes.values()})
    scales = {}
    for name, change in changes.items():
        if change.down is not None:
            rank = int(adapter.tensors[change.down].ref.shape[0])
            scales[name] = config.scale(alphas[change.module], rank)
    source, initial = _initial(
        context, grant, (adapter, base), (config, scales), rows.pop(0) if rows else None
    )
    found = Conversion(grant, arguments, adapter, base, config, changes, scales, source, initial)
    if not found.linear:
        raise CannotAdapt(f"{adapter.title} changes no linear module: there is nothing to convert")
    context.memo["conversion"] = found
    return found


def read_factors(context: ComputeContext, model: InputModel, change: Change) -> Factors:
    """A and B of a module. CannotAdapt if they do not fit together, or are not finite."""
    down, up = (
        read_values(context, model.tensors[name], model.title) for name in _factor_names(change)
    )
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise CannotAdapt(
            f"{change.down} {list(down.shape)} and {change.up} {list(up.shape)} of {model.title} do"
            " not fit together: push the adapter as PEFT saved it"
        )
    return Factors(down, up)


def _factor_names(change: Change) -> tuple[str, str]:
    assert change.down is not None
    assert change.up is not None
    return change.down, change.up


def _load(context: ComputeContext, row: int, folder: str = "") -> InputModel:
    return load_model(context.registry, context.reader, row, context.job_id, folder)


def _config(context: ComputeContext, adapter: InputModel, *, has_init: bool) -> LoraConfig:
    """has_init: the job's user names what the adapter started from."""
    if not any(file.path == CONFIG_FILE for file in adapter.files):
        raise CannotAdapt(f"{adapter.title} has no {CONFIG_FILE}: push an adapter as PEFT saves it")
    data = read_input(context.registry, context.reader, adapter, CONFIG_FILE)
    config = parse_lora(data, adapter.title)
    # Some say by hand that their adapter is plain, though its initial factors lie beside it.
    has_init = has_init or bool(_init_folders(adapter))
    if not config.changes_base and not has_init:
        raise CannotAdapt(
            f"{adapter.title} is a plain LoRA already: init_lora_weights is {config.start}, which"
            " leaves the base as it is"
        )
    return config


def _base(
    context: ComputeContext, grant: Granted, adapter: InputModel, row: int | None
) -> InputModel:
    """The base, if a part of its weights may be stored with the adapter."""
    base = base_of(context, grant.caller, adapter, row)
    refuse_hidden_base(base, adapter)
    return base


def _check_shapes(
    adapter: InputModel, base: InputModel, config: LoraConfig, changes: dict[str, Change]
) -> None:
    for name, change in changes.items():
        if change.whole is not None:
            continue
        weight = base.tensors[name].ref.shape
        down, up = (adapter.tensors[each].ref.shape for each in _factor_names(change))
        is_turned = config.is_transposed or change.is_embedding
        wanted = tuple(reversed(weight)) if is_turned else tuple(weight)
        if len(down) != 2 or len(up) != 2 or down[0] != up[1] or (up[0], down[1]) != wanted:
            raise CannotAdapt(
                f"{change.down} {list(down)} and {change.up} {list(up)} of {adapter.title} do not"
                f" fit to {name} {list(weight)} of {base.title}: name the base that the adapter was"
                " trained on by --base"
            )


def _initial(
    context: ComputeContext,
    grant: Granted,
    models: tuple[InputModel, InputModel],
    settings: tuple[LoraConfig, dict[str, float]],
    row: int | None,
) -> tuple[str, Initial]:
    """(in words, the factors that the adapter started from). row: of --init."""
    adapter, base = models
    config, scales = settings
    if config.start.startswith("loftq"):
        raise CannotAdapt(_way_out(adapter, config.start))
    kit = config.raw.get("deltahub_kit")
    if row is None and isinstance(kit, str):
        row = readable_revision(context.registry, grant.caller, kit)
    if row is not None:
        # A kit holds them in its folder, and an adapter that was saved before training as its own.
        whole = _with_folder(context, row)
        refuse_hidden_base(whole, adapter)
        _require_same_base(context, grant, whole, base)
        source = f"{whole.title}{_of_quantized(context, whole)}"
        return source, _of_model(context, whole, base, models[0])
    folders = _init_folders(adapter)
    if len(folders) > 1:
        raise CannotAdapt(
            f"{adapter.title} has {len(folders)} folders of initial factors, {', '.join(folders)}:"
            " leave the one that it started from"
        )
    if folders:
        found = _load(context, adapter.revision_id, folders[0])
        return f"{folders[0]} of the adapter", _of_model(context, found, base, adapter)
    if config.start not in FROM_BASE:
        raise CannotAdapt(_way_out(adapter, config.start))
    if config.start == "olora" and config.is_transposed:
        raise CannotAdapt(
            f"{adapter.title} was started by olora on transposed weights, which PEFT does not"
            " support: train it again with another init_lora_weights"
        )
    return f"computed from {base.title}", _of_base(context, base, config, scales, adapter)


def _of_quantized(context: ComputeContext, model: InputModel) -> str:
    """What a kit of QPiSSA means for the result, in words; "" for any other."""
    if not any(file.path == KIT_FILE for file in model.files):
        return ""
    try:
        data = read_input(context.registry, context.reader, model, KIT_FILE)
        quant = Kit.model_validate_json(data).quant
    except ValidationError:
        return ""
    if quant is None:
        return ""
    return f", whose base was quantized to {quant}: the result is for the base as it is"


def _init_folders(adapter: InputModel) -> list[str]:
    """Folders of initial factors beside the adapter."""
    return sorted(
        file.path.removesuffix(WEIGHTS_FILE)
        for file in adapter.files
        if file.path.endswith(f"_init/{WEIGHTS_FILE}") and file.path.count("/") == 1
    )


def _require_pinned(
    context: ComputeContext, grant: Granted, adapter: InputModel, base: InputModel, pinned: object
) -> None:
    """CannotAdapt if the configuration names another commit of the base, with other weights."""
    if not isinstance(pinned, str) or pinned == base.commit:
        return
    try:
        row = readable_revision(context.registry, grant.caller, f"{base.name}@{pinned}")
    except RegistryError:
        return  # a revision of another hub
    if row != base.revision_id and not _has_weights_of(base, _load(context, row)):
        raise CannotAdapt(
            f"{adapter.title} was trained on {base.name}@{pinned}, whose weights are not those of"
            f" {base.title}: name it by --base"
        )


def _require_same_base(
    context: ComputeContext, grant: Granted, init: InputModel, base: InputModel
) -> None:
    """CannotAdapt if initial factors were made of a base with other weights."""
    with context.registry.db.read() as session:
        row = session.get_one(Revision, init.revision_id).declared_base_revision_id
    if row is None or row == base.revision_id:
        return
    try:
        require_readable(context, grant.caller, row)
    except RegistryError:
        return
    if not _has_weights_of(base, _load(context, row)):
        raise CannotAdapt(
            f"{init.title} was made of a base whose weights are not those of {base.title}: name the"
            " base that the adapter was trained on by --base"
        )


def _has_weights_of(base: InputModel, other: InputModel) -> bool:
    return all(
        name in other.tensors and other.tensors[name].ref.tensor == tensor.ref.tensor
        for name, tensor in base.tensors.items()
    )


def _way_out(adapter: InputModel, start: str) -> str:
    if start.startswith("loftq"):
        return (
            f"{adapter.title} was started by loftq, which quantized its base, and only that"
            " quantizer makes the same base again: merge it into a full model where it was"
            " trained, and push that"
        )
    return (
        f"{adapter.title} was started by {start}, and its initial factors do not follow from the"
        " base: push those that PEFT saved before training in a folder pissa_init/ beside it, or"
        " name them by --init; to keep them in future, train with"
        " deltahub.client.transfer.keep_initial_factors"
    )


def _with_folder(context: ComputeContext, row: int) -> InputModel:
    """The model at a row, or that in its one folder of initial factors."""
    with context.registry.db.read() as session:
        revision = session.get_one(Revision, row)
        paths = [entry.path for entry in list_entries(session, revision)]
    folders = [
        path.removesuffix(WEIGHTS_FILE) for path in paths if path.endswith(f"_init/{WEIGHTS_FILE}")
    ]
    return _load(context, row, folders[0] if len(folders) == 1 else "")


def _of_model(
    context: ComputeContext, found: InputModel, base: InputModel, adapter: InputModel
) -> Initial:
    changes = changes_of(found.tensors.keys(), base.tensors.keys(), found.title)

    def initial(name: str, change: Change) -> Factors:
        if name not in changes or changes[name].down is None:
            raise CannotAdapt(
                f"{found.title} has no initial factors of {change.module}, which {adapter.title}"
                " changes: name those that it started from by --init"
            )
        factors = read_factors(context, found, changes[name])
        shapes = [adapter.tensors[each].ref.shape for each in _factor_names(change)]
        if [factors.down.shape, factors.up.shape] != [tuple(each) for each in shapes]:
            raise CannotAdapt(
                f"the initial factors of {change.module} in {found.title} have another shape than"
                f" those of {adapter.title}: name those that it started from by --init"
            )
        return factors

    return initial


def _of_base(
    context: ComputeContext,
    base: InputModel,
    config: LoraConfig,
    scales: dict[str, float],
    adapter: InputModel,
) -> Initial:
    def initial(name: str, change: Change) -> Factors:
        stored: Weight = read_matrix(context, base.tensors[name], base.title)
        weight = np.ascontiguousarray(stored.T) if config.is_transposed else stored
        rank = int(adapter.tensors[str(change.down)].ref.shape[0])
        if config.start == "olora":
            return olora_factors(weight, rank)
        return initial_factors(
            principal_spectrum(weight, rank, iterations=None), rank, scales[name]
        )

    return initial


def raw_config(conversion: Conversion) -> dict[str, Any]:
    """The adapter's configuration as it was pushed."""
    found: dict[str, Any] = json.loads(json.dumps(dict(conversion.config.raw)))
    return found


def ranks(conversion: Conversion) -> Sequence[int]:
    """The rank of each converted module."""
    return [conversion.rank(name) for name in conversion.linear]


def embedding_rank(conversion: Conversion) -> int:
    """The largest rank of adapters of embeddings, 0 without any."""
    embeddings = [each for each in conversion.changes.values() if each.is_embedding]
    tensors = conversion.adapter.tensors
    return max((int(tensors[str(each.down)].ref.shape[0]) for each in embeddings), default=0)
