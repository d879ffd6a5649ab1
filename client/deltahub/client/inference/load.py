"""Exports and families of fine-tunes of a hub, as models that run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from deltahub.client.errors import InvalidArgument
from deltahub.client.hub import Hub
from deltahub.client.names import is_repository_name, named_revision
from deltahub.methods.inference.cards import device_of
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import load_folder


def load(
    export: str | Path,
    *,
    hub: Hub | None = None,
    bits: int | None = None,
    threads: int | None = None,
    prefetch: bool = True,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The model of an export, as a model of transformers whose weights stay compressed.

    export: a folder, or `namespace/name[@revision]` of a hub, which is pulled. hub: by default that
    of the environment. bits: mantissa bits to read, fewer than the export has; None for all.
    threads: for decoding; by default one a processor. prefetch: decode the next layer while one
    computes. device: where the model runs; on a GPU the weights stay compressed in its memory.

    Each weight is decoded when its layer runs, into a buffer that the layers share. Errors: those
    of `Hub.pull`; InvalidArgument if there is no such folder; CannotExport if the folder is no
    export, its model is unknown, or no GPU decodes it; InvalidInput for bits that it does not have,
    or no device; CorruptFrame names a damaged weight; NoGpu if the device is a GPU that this
    machine lacks, or needs CuPy.
    """
    count, place = _threads(threads), device_of(device)
    folder = _folder(export, hub)
    return load_folder(folder, bits=bits, threads=count, prefetch=prefetch, device=place)


def load_family(
    base: str | Path,
    fine_tunes: Sequence[str | Path] | Mapping[str, str | Path] | str | Path,
    *,
    hub: Hub | None = None,
    threads: int | None = None,
    prefetch: bool = True,
    device: torch.device | str = "cpu",
) -> Family:
    """A base and fine-tunes of it in memory, for the price of the base and their differences.

    fine_tunes: repositories or folders, which are their names, or name -> repository or folder.
    `family.use(name)` chooses the one that `family.model` is. Nothing is lost. The other arguments
    and errors are those of `load`; CannotExport if the base or a fine-tune is an export or an
    adapter, or a fine-tune has another tensor, dtype or shape than the base.
    """
    if isinstance(fine_tunes, str | Path):
        fine_tunes = [fine_tunes]
    named = (
        fine_tunes if isinstance(fine_tunes, Mapping) else {str(each): each for each in fine_tunes}
    )
    count, place = _threads(threads), device_of(device)
    folders = {name: _folder(each, hub) for name, each in named.items()}
    return Family(_folder(base, hub), folders, threads=count, prefetch=prefetch, device=place)


def _folder(target: str | Path, hub: Hub | None) -> Path:
    if Path(target).is_dir():
        return Path(target)
    if isinstance(target, Path):
        raise InvalidArgument(f"there is no folder {target}")
    name, revision = named_revision(target)
    if not is_repository_name(name):
        raise InvalidArgument(
            f"{target} is no folder here, nor the name of a repository: give the path of a folder,"
            " or NAMESPACE/NAME of a hub, with @REVISION if need be"
        )
    return (hub or Hub()).pull(name, revision=revision or "main")


def _threads(asked: int | None) -> int:
    if asked is not None and (type(asked) is not int or asked < 1):
        raise InvalidArgument(f"threads {asked!r}: give a whole number from 1 on, or leave it out")
    return asked or os.cpu_count() or 1
