"""What the steps of a conversion read: the adapter, its base, and where its factors come from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.lora import (
    CONFIG_FILE,
    Change,
    LoraConfig,
    changes_of,
    parse_lora,
)
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.registry.errors import RegistryError
from deltahub.registry.results.asked import Granted, granted, readable_revision
from deltahub.registry.results.inputs import InputModel, read_input
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.time_limit import time_limit
from deltahub.workers.jobs.adapters.convert_initial import (
    Initial,
    factor_names,
    has_weights_of,
    init_folders,
    initial_of,
    load,
    read_factors,
)
from deltahub.workers.jobs.adapters.declared_base import (
    base_of,
    refuse_hidden_base,
    require_head,
)
from deltahub.workers.jobs.merge.adapters import require_equal_copies

# Longest time to match the patterns of an adapter with all of its modules.
_MATCHING_S: Final = 20.0


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
        linear = {each for name in self.linear for each in factor_names(self.changes[name])}
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
    adapter = load(context, rows.pop(0))
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
    source, initial = initial_of(
        context, grant, (adapter, base), (config, scales), rows.pop(0) if rows else None
    )
    found = Conversion(grant, arguments, adapter, base, config, changes, scales, source, initial)
    if not found.linear:
        raise CannotAdapt(f"{adapter.title} changes no linear module: there is nothing to convert")
    context.memo["conversion"] = found
    return found


def _config(context: ComputeContext, adapter: InputModel, *, has_init: bool) -> LoraConfig:
    """has_init: the job's user names what the adapter started from."""
    if not any(file.path == CONFIG_FILE for file in adapter.files):
        raise CannotAdapt(f"{adapter.title} has no {CONFIG_FILE}: push an adapter as PEFT saves it")
    data = read_input(context.registry, context.reader, adapter, CONFIG_FILE)
    config = parse_lora(data, adapter.title)
    # Some say by hand that their adapter is plain, though its initial factors lie beside it.
    has_init = has_init or bool(init_folders(adapter))
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
        down, up = (adapter.tensors[each].ref.shape for each in factor_names(change))
        is_turned = config.is_transposed or change.is_embedding
        wanted = tuple(reversed(weight)) if is_turned else tuple(weight)
        if len(down) != 2 or len(up) != 2 or down[0] != up[1] or (up[0], down[1]) != wanted:
            raise CannotAdapt(
                f"{change.down} {list(down)} and {change.up} {list(up)} of {adapter.title} do not"
                f" fit to {name} {list(weight)} of {base.title}: name the base that the adapter was"
                " trained on by --base"
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
    if row != base.revision_id and not has_weights_of(base, load(context, row)):
        raise CannotAdapt(
            f"{adapter.title} was trained on {base.name}@{pinned}, whose weights are not those of"
            f" {base.title}: name it by --base"
        )


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
