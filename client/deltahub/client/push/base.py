"""The base that a push encodes against: which tensors of it are here, and which fits which."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from deltahub.client.api.endpoints import Api
from deltahub.client.api.recipes import read_recipe
from deltahub.client.errors import NotReady
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.names import path_problem
from deltahub.client.records import PlannedTensor, Revision
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import BaseTensor, TensorInfo, align

# Wrappers put a model's tensors under another first name: model., transformer., base_model.
_MIN_SUFFIX = 2


@dataclass(frozen=True, slots=True)
class LocalBase(BaseTensor):
    """A base tensor on this machine.

    too_deep: the id of the base model's own tensor, if the depth limit forbids a delta against it
    and this tensor takes its place. None if the limit allows it, or it is not on this machine.
    depth: that a delta against this tensor has. room: how many deltas fit on top of that.
    """

    too_deep: bytes | None = None
    depth: int = 1
    room: int = 0


class BaseSet:
    """The tensors of one base, by name."""

    def __init__(self, tensors: Iterable[LocalBase]) -> None:
        self._by_name: dict[str, LocalBase] = {}
        self._by_suffix: dict[str, list[LocalBase]] = {}
        for tensor in tensors:
            self._by_name.setdefault(tensor.name, tensor)
            for suffix in _suffixes(tensor.name):
                self._by_suffix.setdefault(suffix, []).append(tensor)

    def __len__(self) -> int:
        return len(self._by_name)

    def sizes(self) -> dict[str, int]:
        """id in hex -> bytes, of every tensor that may be coded against."""
        return {
            each.hash.hex(): each.count * DType[each.dtype].itemsize
            for each in self._by_name.values()
        }

    def only(self, known: Collection[str]) -> "BaseSet":
        """The tensors among these ids."""
        return BaseSet(each for each in self._by_name.values() if each.hash.hex() in known)

    def match(self, info: TensorInfo) -> LocalBase | None:
        """The base tensor to try for a tensor of the pushed file, None if nothing can be aligned.

        Same name first, else the only tensor with the longest common ending of the name; where
        several end alike, the only one of the same shape.
        """
        named = self._by_name.get(info.name)
        if named is not None and align(info, named) is not None:
            return named
        for suffix in _suffixes(info.name):
            same_ending = self._by_suffix.get(suffix, ())
            fitting = [each for each in same_ending if align(info, each) is not None]
            if fitting:
                chosen = [each for each in fitting if each.shape == info.shape] or fitting
                return chosen[0] if len(chosen) == 1 else None
        return None


def load_base(api: Api, sources: Sources, name: str, revision: Revision, max_depth: int) -> BaseSet:
    """The tensors of a base that the hub knows and this machine holds; none before its ingest.

    max_depth: the longest chain of deltas that the hub takes. A tensor at the end of such a chain
    is replaced by its own base, if that is here: the hub would refuse one delta more.
    """
    usable: list[LocalBase] = []
    for entry in revision.entries:
        if not entry.path.endswith(".safetensors") or entry.state != "ingested":
            continue
        if path_problem(entry.path) is not None:
            continue
        try:
            found = read_recipe(api, name, revision.commit, entry)
        except NotReady:
            continue
        stored = found.stored
        refs = [
            ref
            for ref in found.recipe.tensors()
            if ref.name is not None and ref.dtype in DType.__members__
        ]
        bases = {ref.tensor: _within_depth(stored.get(ref.tensor), max_depth) for ref in refs}
        sources.look_up(tensor for pair in bases.items() for tensor in pair if tensor is not None)
        for ref in refs:
            tensor = bases[ref.tensor]
            if tensor is None or tensor not in sources or sources.size_of(tensor) != ref.size:
                continue
            is_replaced = tensor != ref.tensor and ref.tensor in sources
            too_deep = ref.tensor if is_replaced else None
            depth = min(stored[ref.tensor].depth + 1, max_depth)
            usable.append(
                LocalBase(
                    ref.name or "", ref.dtype, ref.shape, tensor, too_deep, depth, max_depth - depth
                )
            )
    return BaseSet(usable)


def _within_depth(stored: PlannedTensor | None, max_depth: int) -> bytes | None:
    """The id of the tensor, or of its only base where a delta against the tensor is too deep."""
    if stored is None:
        return None
    if stored.depth < max_depth:
        return bytes.fromhex(stored.id)
    # An only base lies one delta less deep.
    is_replaced = stored.depth == max_depth and len(stored.bases) == 1
    return bytes.fromhex(stored.bases[0]) if is_replaced else None


def _suffixes(name: str) -> list[str]:
    """Endings of a dotted name, longest first: the whole name is one."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - _MIN_SUFFIX + 1)]
