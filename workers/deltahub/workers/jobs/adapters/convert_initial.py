"""The factors that an adapter started from: in a kit, beside the adapter, or from its base."""

from collections.abc import Callable
from typing import Final

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
from deltahub.methods.adapters.lora import WEIGHTS_FILE, Change, LoraConfig, changes_of
from deltahub.methods.errors import CannotAdapt
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.db.models import Revision
from deltahub.registry.errors import RegistryError
from deltahub.registry.results.asked import Granted, readable_revision
from deltahub.registry.results.inputs import InputModel, load_model, read_input
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.declared_base import refuse_hidden_base, require_readable
from deltahub.workers.jobs.adapters.tensors import read_matrix, read_values

# Kinds whose initial factors follow from the base's weights alone.
FROM_BASE: Final = ("pissa", "olora")

Initial = Callable[[str, Change], Factors]
"""initial(tensor of the base, how it is changed): the factors that the module started from"""


def read_factors(context: ComputeContext, model: InputModel, change: Change) -> Factors:
    """A and B of a module. CannotAdapt if they do not fit together, or are not finite."""
    down, up = (
        read_values(context, model.tensors[name], model.title) for name in factor_names(change)
    )
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise CannotAdapt(
            f"{change.down} {list(down.shape)} and {change.up} {list(up.shape)} of {model.title} do"
            " not fit together: push the adapter as PEFT saved it"
        )
    return Factors(down, up)


def factor_names(change: Change) -> tuple[str, str]:
    assert change.down is not None
    assert change.up is not None
    return change.down, change.up


def load(context: ComputeContext, row: int, folder: str = "") -> InputModel:
    return load_model(context.registry, context.reader, row, context.job_id, folder)


def initial_of(
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
    folders = init_folders(adapter)
    if len(folders) > 1:
        raise CannotAdapt(
            f"{adapter.title} has {len(folders)} folders of initial factors, {', '.join(folders)}:"
            " leave the one that it started from"
        )
    if folders:
        found = load(context, adapter.revision_id, folders[0])
        return f"{folders[0]} of the adapter", _of_model(context, found, base, adapter)
    if config.start not in FROM_BASE:
        raise CannotAdapt(_way_out(adapter, config.start))
    if config.start == "olora" and config.is_transposed:
        raise CannotAdapt(
            f"{adapter.title} was started by olora on transposed weights, which PEFT does not"
            " support: train it again with another init_lora_weights"
        )
    return f"computed from {base.title}", _of_base(context, base, config, scales, adapter)


def _with_folder(context: ComputeContext, row: int) -> InputModel:
    """The model at a row, or that in its one folder of initial factors."""
    with context.registry.db.read() as session:
        revision = session.get_one(Revision, row)
        paths = [entry.path for entry in list_entries(session, revision)]
    folders = [
        path.removesuffix(WEIGHTS_FILE) for path in paths if path.endswith(f"_init/{WEIGHTS_FILE}")
    ]
    return load(context, row, folders[0] if len(folders) == 1 else "")


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


def init_folders(adapter: InputModel) -> list[str]:
    """Folders of initial factors beside the adapter."""
    return sorted(
        file.path.removesuffix(WEIGHTS_FILE)
        for file in adapter.files
        if file.path.endswith(f"_init/{WEIGHTS_FILE}") and file.path.count("/") == 1
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
    if not has_weights_of(base, load(context, row)):
        raise CannotAdapt(
            f"{init.title} was made of a base whose weights are not those of {base.title}: name the"
            " base that the adapter was trained on by --base"
        )


def has_weights_of(base: InputModel, other: InputModel) -> bool:
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
        shapes = [adapter.tensors[each].ref.shape for each in factor_names(change)]
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
