"""The files of a step: its tensors in safetensors files, which depend on their names alone."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from blake3 import blake3

from deltahub.client.steps.memory import HeldTensor
from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.codecs.files.new_header import new_header
from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.files.split import FilePlan, make_recipe, plan_file

# transformers asks for this key.
_METADATA: Final = {"format": "pt"}
# Several files are hashed at once, by several cores.
_MAX_FILE_BYTES: Final = 4 << 30
INDEX: Final = "model.safetensors.index.json"


@dataclass(frozen=True)
class StepFile:
    """A safetensors file of a step. tensors: in the order in which they follow the header."""

    path: str
    header: bytes
    tensors: tuple[HeldTensor, ...]

    @property
    def size(self) -> int:
        return len(self.header) + sum(each.size for each in self.tensors)

    def sha256(self) -> str:
        digest = hashlib.sha256(self.header)
        for each in self.tensors:
            digest.update(each.view)
        return digest.hexdigest()

    def plan(self) -> FilePlan:
        return plan_file(self._read_header, self.size, self.path)

    def parts(self, plan: FilePlan) -> list[HeldTensor]:
        """What the hub takes for tensors of the file: chunks of a large header, then tensors."""
        found: list[HeldTensor] = []
        for piece in plan.tensor_pieces():
            if piece.name is None:
                data = np.frombuffer(self.header, np.uint8)[piece.start : piece.end]
                content = blake3(data.data).digest()
                found.append(HeldTensor(None, content, piece.dtype, piece.shape, data))
        return [*found, *self.tensors]

    def recipe(self, plan: FilePlan, sha256: str) -> Recipe:
        ids = [each.tensor for each in self.parts(plan)]
        return make_recipe(plan, bytes.fromhex(sha256), ids, self._read_header)

    def _read_header(self, offset: int, length: int) -> bytes:
        return self.header[offset : offset + length]


def files_of(tensors: Iterable[HeldTensor]) -> list[StepFile]:
    """The safetensors files of a step, as Hugging Face's clients name them."""
    groups: list[list[HeldTensor]] = [[]]
    size = 0
    for each in sorted(tensors, key=lambda each: each.name or ""):
        if groups[-1] and size + each.size > _MAX_FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    return [_file(number, len(groups), group) for number, group in enumerate(groups, 1)]


def index_of(files: Sequence[StepFile]) -> bytes | None:
    """The index that says which file has which tensor; None for a single file."""
    if len(files) == 1:
        return None
    places = {each.name: file.path for file in files for each in file.tensors}
    total = sum(each.size for file in files for each in file.tensors)
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(document, indent=1).encode()


def _file(number: int, count: int, tensors: list[HeldTensor]) -> StepFile:
    # Wide elements first: so each tensor begins at a multiple of its element's bytes.
    ordered = sorted(tensors, key=lambda each: (-HEADER_BITS[each.dtype], each.name or ""))
    named = [(each.name or "", each.dtype, each.shape) for each in ordered]
    path = "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
    return StepFile(path, new_header(named, _METADATA), tuple(ordered))
