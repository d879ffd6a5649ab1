"""The base that a push encodes against: which tensors of it are here, and which fits which."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import NotReady
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.records import PlannedTensor, Revision
from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType
from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.files.split import FilePiece
from deltahub.codecs.frames.base_plan import BasePlan, BaseSegment
from deltahub.codecs.ids import ZERO_ID

# The hub's default policy: no chain of deltas is longer. It refuses what would be.
_MAX_DEPTH = 2
# Wrappers put a model's tensors under another first name: model., transformer., base_model.
_MIN_SUFFIX = 2


@dataclass(frozen=True)
class BaseTensor:
    """A tensor of the base that lies on this machine."""

    tensor: bytes
    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    def plan(self, dtype: DType, start: int, count: int) -> BasePlan:
        """The base of elements [start, start + count) of the tensor that is pushed.

        Elements beyond the base's end (appended rows) have zeros as their base.
        """
        covered = max(0, min(start + count, self.count) - start)
        segments = []
        if covered:
            segments.append(BaseSegment(self.tensor, self.dtype, start, covered))
        if covered < count:
            segments.append(BaseSegment(ZERO_ID, dtype, 0, count - covered))
        return BasePlan(tuple(segments), any(each.dtype != dtype for each in segments))


class BaseSet:
    """The tensors of one base, by name and by shape."""

    def __init__(self, tensors: Iterable[BaseTensor]) -> None:
        self._by_name: dict[str, BaseTensor] = {}
        self._by_suffix: dict[str, list[BaseTensor]] = {}
        for tensor in tensors:
            self._by_name.setdefault(tensor.name, tensor)
            for suffix in _suffixes(tensor.name):
                self._by_suffix.setdefault(suffix, []).append(tensor)

    def __len__(self) -> int:
        return len(self._by_name)

    def sizes(self) -> dict[str, int]:
        """id in hex -> bytes, of every tensor."""
        return {
            each.tensor.hex(): each.count * each.dtype.itemsize for each in self._by_name.values()
        }

    def only(self, known: Collection[str]) -> "BaseSet":
        """The tensors among these ids."""
        return BaseSet(each for each in self._by_name.values() if each.tensor.hex() in known)

    def match(self, piece: FilePiece) -> BaseTensor | None:
        """The base tensor to try for a tensor of the pushed file, None if nothing fits.

        Same name first, else the only tensor with the longest common ending of the name. It
        must have the same shape, or the same rows but more or fewer of them; and the same
        element type, or one that casts to it.
        """
        if piece.name is None:
            return None
        named = self._by_name.get(piece.name)
        if named is not None and _fits(named, piece):
            return named
        for suffix in _suffixes(piece.name):
            fitting = [each for each in self._by_suffix.get(suffix, ()) if _fits(each, piece)]
            if len(fitting) == 1:
                return fitting[0]
            if fitting:
                return None  # several layers end alike: the name does not tell which
        return None


def load_base(api: Api, sources: Sources, name: str, revision: Revision) -> BaseSet:
    """What the hub knows of a base and this machine holds; empty before its ingest.

    A tensor at the end of the longest allowed chain of deltas is replaced by the one that it is
    coded against, if that is here: the hub would refuse one delta more.
    """
    usable: list[BaseTensor] = []
    for entry in revision.entries:
        if not entry.path.endswith(".safetensors") or entry.state != "ingested":
            continue
        try:
            plan = api.get_recipe_plan(name, revision.commit, entry.path)
            recipe = Recipe.from_bytes(api.get_recipe_bytes(name, revision.commit, entry.path))
        except NotReady:
            continue
        stored = {bytes.fromhex(each.id): each for each in plan.tensors}
        refs = [
            ref
            for ref in recipe.tensors()
            if ref.name is not None and ref.dtype in DType.__members__
        ]
        nearest = {ref.tensor: _nearest(ref.tensor, stored.get(ref.tensor)) for ref in refs}
        sources.look_up(nearest.values())
        usable += [
            BaseTensor(nearest[ref.tensor], ref.name or "", DType[ref.dtype], ref.shape)
            for ref in refs
            if nearest[ref.tensor] in sources and sources.size_of(nearest[ref.tensor]) == ref.size
        ]
    return BaseSet(usable)


def _nearest(tensor: bytes, stored: PlannedTensor | None) -> bytes:
    """The tensor, or the base it is coded against if the chain may not become longer."""
    if stored is None or len(stored.bases) != 1:
        return tensor
    depth = 1 if stored.depth is None else stored.depth
    return tensor if depth < _MAX_DEPTH else bytes.fromhex(stored.bases[0])


def _fits(base: BaseTensor, piece: FilePiece) -> bool:
    if piece.dtype not in DType.__members__:
        return False
    dtype = DType[piece.dtype]
    if dtype != base.dtype and not {dtype, base.dtype} <= CASTABLE:
        return False
    if base.shape == piece.shape:
        return True
    if not base.shape or not piece.shape or base.shape[1:] != piece.shape[1:]:
        return False
    # A base for less than half of the rows is more likely another matrix.
    return len(base.shape) > 1 and 2 * min(base.shape[0], piece.shape[0]) >= piece.shape[0]


def _suffixes(name: str) -> list[str]:
    """Endings of a dotted name, longest first: the whole name is one."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - _MIN_SUFFIX + 1)]
