"""The tensors of a step as the hub has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltahub.client.api.endpoints import Api
from deltahub.client.api.recipes import read_recipe
from deltahub.client.errors import InvalidArgument
from deltahub.client.records import PlannedTensor, Revision
from deltahub.codecs.files.recipe import TensorRef

_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True)
class StoredStep:
    """tensors: those of the step, each with a name. stored: by content id, how the hub keeps them.

    n_bytes: of the recipes that say so.
    """

    tensors: tuple[TensorRef, ...]
    stored: Mapping[bytes, PlannedTensor]
    n_bytes: int


def is_of_step(path: str) -> bool:
    """Whether a file of this path has tensors of a step: a safetensors file at the top."""
    return path.endswith(_SUFFIX) and "/" not in path


def read_step(api: Api, run: str, found: Revision) -> StoredStep:
    """The tensors of the safetensors files at the top of a revision.

    InvalidArgument if there are none, or two of a name.
    """
    refs: list[TensorRef] = []
    stored: dict[bytes, PlannedTensor] = {}
    n_bytes = 0
    for entry in found.entries:
        if is_of_step(entry.path):
            recipe = read_recipe(api, run, found.commit, entry)
            n_bytes += recipe.n_bytes
            refs += [ref for ref in recipe.recipe.tensors() if ref.name is not None]
            stored |= recipe.stored
    if not refs:
        raise InvalidArgument(f"{run}@{found.commit[:12]} has no safetensors files")
    if len({ref.name for ref in refs}) < len(refs):
        raise InvalidArgument(
            f"two safetensors files of {run}@{found.commit[:12]} have a tensor of the same name:"
            " pull its files instead"
        )
    return StoredStep(tuple(refs), stored, n_bytes)
