"""Models of transformers with the weights of an export, and modules compressed in place."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.exports.file import FILE_NAME, ExportFile, map_export
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.building import (
    empty_model,
    owner_of,
    places_of,
    plain_tensor,
    put,
    share_ties,
    ties_of,
)
from deltahub.methods.inference.cards import card_for, check_integers, device_of
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.modules import CompressedModule, Compressible
from deltahub.methods.inference.rounding import roundings_of, within_budget
from deltahub.methods.inference.sources import (
    CODED_DTYPES,
    TORCH_DTYPES,
    Source,
    bits_to_read,
    compressed,
)
from deltahub.methods.inference.workspace import Workspace
from deltahub.methods.kinds.export_neuzip import ExportBits, ExportMethod, ExportNeuzipArguments
from deltahub.methods.kinds.kind import fault_text
from deltahub.methods.kinds.weights.choice import MIN_ELEMENTS, choose


def load_folder(
    folder: Path,
    *,
    bits: int | None = None,
    threads: int = 1,
    prefetch: bool = True,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The model of an export in a folder, as a model of transformers in evaluation mode.

    bits: mantissa bits to read, fewer than the export has; None for all. CannotExport if the folder
    is no export, or needs code of its own, or consists of integers, which no GPU decodes;
    InvalidInput for bits that it was not made for, or no device; CorruptFrame names the damaged
    weight; NoGpu if the device is a GPU that this machine lacks.
    """
    place = device_of(device)
    path = folder / FILE_NAME
    if not path.is_file():
        raise CannotExport(
            f"{folder} has no {FILE_NAME}: make an export by `deltahub export neuzip`, or load the"
            " model by transformers"
        )
    export = map_export(path)
    # Both refuse before a model is built.
    check_integers({place}, {name: each.coding for name, each in export.weights.items()})
    card_for(place)
    stored = TORCH_DTYPES[next(iter(export.weights.values())).coding.dtype]
    model = empty_model(folder, stored)
    load_into(model, export, bits=bits, threads=threads, prefetch=prefetch)
    return model.eval().to(place)


def load_into(
    model: nn.Module,
    export: ExportFile,
    *,
    bits: int | None = None,
    threads: int = 1,
    prefetch: bool = True,
) -> None:
    """Give a module the weights of an export: matrices stay compressed, other tensors are plain.

    model: any module whose parameters have the export's names; their contents may be missing (on
    the device meta). CannotExport names what does not fit, and InvalidInput bits that it was not
    made for, before anything was changed.
    """
    shapes = {name: weight.shape for name, weight in export.weights.items()}
    shapes |= {name: info.shape for name, info in export.plain.items()}
    codings = {name: weight.coding for name, weight in export.weights.items()}
    wanted = bits_to_read(codings, bits)
    places = places_of(model, shapes)
    devices = {getattr(*owner_of(model, places[name])).device for name in codings}
    check_integers(devices, codings)
    workspace = Workspace(prefetch)
    sources = {
        name: Source(weight, wanted[name], threads) for name, weight in export.weights.items()
    }
    compressed_owners = {
        name: owner
        for name in sources
        for owner, last in [owner_of(model, places[name])]
        if last == "weight" and Compressible.has(owner)
    }
    # Everything that can fail comes before the first change.
    plain = {
        name: sources[name].decode() if name in sources else _plain(export, name)
        for name in places
        if name not in compressed_owners
    }
    ties = ties_of(model, places.values())
    for name, tensor in plain.items():
        put(*owner_of(model, places[name]), tensor)
    for name, owner in compressed_owners.items():
        Compressible.compress(owner, sources[name], workspace)
    share_ties(model, ties)
    model.register_forward_hook(workspace.check_pass)


def compress_(
    module: nn.Module,
    *,
    bits: ExportBits | int = 7,
    method: ExportMethod = "neuzip",
    budget: float | None = None,
    block: int = 0,
    keep: Sequence[str] | str | None = None,
    lossless: bool = False,
    threads: int = 1,
    prefetch: bool = True,
) -> nn.Module:
    """Compress the matrices of a module in place, on its device; the module itself.

    The arguments are those of `Hub.export_neuzip`: 7 bits are all of BF16, but F16 and F32 are
    rounded unless `lossless`. budget: with bits "auto", as there; each weight is then coded once
    for each number of bits. threads: for this, and for decoding.

    Nothing is changed unless all weights can be compressed. Modules that share a weight share it
    afterwards. InvalidInput for arguments that do not fit together; CannotExport if the module has
    no weight to compress, or has infinite or NaN elements in one that would be rounded.
    """
    arguments = _arguments(
        bits=bits, method=method, budget=budget, block=block, keep=keep, lossless=lossless
    )
    owners = {
        f"{name}.weight": owner
        for name, owner in module.named_modules(remove_duplicate=False)
        if Compressible.has(owner) and owner._parameters.get("weight") is not None
    }
    shapes = {
        name: (CODED_DTYPES[weight.dtype].name, tuple(weight.shape))
        for name, owner in owners.items()
        if (weight := owner.weight).dtype in CODED_DTYPES
    }
    is_compressed = any(isinstance(each, CompressedModule) for each in module.modules())
    if is_compressed and not any(prod(shape) >= MIN_ELEMENTS for _, shape in shapes.values()):
        raise CannotExport(
            f"{type(module).__name__} is compressed already: to compress it otherwise, take the"
            " plain model"
        )
    choice = choose(shapes, arguments, type(module).__name__)
    workspace = Workspace(prefetch)
    known: dict[int, Source] = {}
    # A weight under several names is kept lossless if one of them is.
    lossless_ids = {
        id(owners[name].weight) for name, how in choice.coded.items() if how.is_lossless
    }
    devices = {owners[name].weight.device for name in choice.coded}
    check_integers(devices, choice.coded)
    for device in devices:
        card_for(device)
    for name, how in choice.coded.items():
        if not how.is_lossless and not bool(torch.isfinite(owners[name].weight).all()):
            raise CannotExport(f"{name} has infinite or NaN elements: keep it by keep")
    weights = {name: owners[name].weight for name in choice.coded}
    choice = within_budget(choice, weights, arguments, threads)
    number = 0.0 if arguments.bits == "auto" else float(arguments.bits)
    encodings = roundings_of(choice, weights, number)
    for name, encoding in encodings.items():
        weight = owners[name].weight
        if id(weight) in known or (
            id(weight) in lossless_ids and not choice.coded[name].is_lossless
        ):
            continue
        known[id(weight)] = Source(compressed(name, weight, encoding, threads), None, threads)
    for name in choice.coded:
        if Compressible.has(owners[name]):
            source = known[id(owners[name].weight)]
            Compressible.compress(owners[name], source, workspace)
    module.register_forward_hook(workspace.check_pass)
    return module


def _arguments(**given: Any) -> ExportNeuzipArguments:
    """InvalidInput says what is wrong with them."""
    if isinstance(given["keep"], str):
        given["keep"] = [given["keep"]]
    asked = {name: each for name, each in given.items() if each is not None}
    try:
        # A module in memory has no name on a hub.
        return ExportNeuzipArguments.model_validate({"model": "a/b", "name": "a/c"} | asked)
    except ValidationError as exc:
        raise InvalidInput("; ".join(fault_text(each) for each in exc.errors())) from exc


def resident_bytes(model: nn.Module | Family) -> int:
    """Bytes of a model's weights in memory: compressed ones, and plain parameters and buffers. Of a
    family those of all its models.
    """
    if isinstance(model, Family):
        return resident_bytes(model.model) + model.plain_bytes
    sources = {id(m.source): m.source for m in model.modules() if isinstance(m, CompressedModule)}
    plain = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return sum(each.size_bytes for each in sources.values()) + sum(
        each.numel() * each.element_size() for each in plain.values()
    )


def _plain(export: ExportFile, name: str) -> torch.Tensor:
    info = export.plain[name]
    return plain_tensor(name, info.dtype, info.shape, export.bytes_of(info))
