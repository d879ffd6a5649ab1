"""The base that a push encodes against: which tensors of it are here, and which fits which."""

from collections.abc import Collection, Iterable

from deltahub.client.api.endpoints import Api
from deltahub.client.api.recipes import read_recipe
from deltahub.client.errors import NotReady
from deltahub.client.local.tensor_sources import MissingTensor, Sources
from deltahub.client.names import path_problem
from deltahub.client.records import Revision
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import BaseTensor, TensorInfo, align
from deltahub.codecs.frames.base_plan import ReadBase
from deltahub.codecs.frames.layouts.search import LayoutSearch

# Wrappers put a model's tensors under another first name: model., transformer., base_model.
_MIN_SUFFIX = 2


class BaseSet:
    """The tensors of one base, by name.

    layouts: finds those that a tensor of another layout consists of.
    """

    def __init__(self, tensors: Iterable[BaseTensor], read: ReadBase) -> None:
        """read: reads local tensors; MissingTensor means that one is no base."""
        self._by_name: dict[str, BaseTensor] = {}
        self._by_suffix: dict[str, list[BaseTensor]] = {}
        for tensor in tensors:
            self._by_name.setdefault(tensor.name, tensor)
            for suffix in _suffixes(tensor.name):
                self._by_suffix.setdefault(suffix, []).append(tensor)
        self._read = read
        self.layouts = LayoutSearch(self._by_name.values(), read, unreadable=(MissingTensor,))

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
        usable = (each for each in self._by_name.values() if each.hash.hex() in known)
        return BaseSet(usable, self._read)

    def match(self, info: TensorInfo) -> BaseTensor | None:
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


def load_base(api: Api, sources: Sources, name: str, revision: Revision) -> BaseSet:
    """The tensors of a base that the hub knows and this machine holds; none before its ingest.

    How the hub stores them does not matter: it takes a delta against each of them.
    """
    usable: list[BaseTensor] = []
    for entry in revision.entries:
        if not entry.path.endswith(".safetensors") or entry.state != "ingested":
            continue
        if path_problem(entry.path) is not None:
            continue
        try:
            found = read_recipe(api, name, revision.commit, entry)
        except NotReady:
            continue
        refs = [
            ref
            for ref in found.recipe.tensors()
            if ref.name is not None and ref.dtype in DType.__members__
        ]
        sources.look_up(ref.tensor for ref in refs)
        for ref in refs:
            if ref.tensor in sources and sources.size_of(ref.tensor) == ref.size:
                usable.append(BaseTensor(ref.name or "", ref.dtype, ref.shape, ref.tensor))
    return BaseSet(usable, sources.read)


def _suffixes(name: str) -> list[str]:
    """Endings of a dotted name, longest first: the whole name is one."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - _MIN_SUFFIX + 1)]
