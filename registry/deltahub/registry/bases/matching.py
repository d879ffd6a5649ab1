"""Matches a tensor with a candidate's tensors: of the same name, renamed, or in another layout.

Each match is tried on a sample afterwards, so a wrong match costs a little time and no bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from deltahub.codecs.dtypes import DType
from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames import BasePlan, parse_header, peek_header_length
from deltahub.codecs.frames.base_choice import TensorInfo, align
from deltahub.codecs.frames.base_plan import ReadTensor
from deltahub.codecs.frames.layouts.search import LayoutSearch
from deltahub.codecs.frames.nearness import U16, nearness, to_bf16
from deltahub.registry.bases.candidates import Candidate, StoredTensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.lineage.tensor_sketch import FLOATS
from deltahub.registry.packs.locations import locate, resolve, usable_bases
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound
from deltahub.registry.storage.keys import pack_key

# Elements in the middle of a tensor that are compared if no name matches.
PROBE_ELEMENTS = 64
MIN_NEARNESS = 0.5
# Most tensors of one shape that are probed: each probe decodes a block.
MAX_PROBED = 1024

# Tensors of one shape, and their probes: shape (tensors, PROBE_ELEMENTS).
_Probes = tuple[list[StoredTensor], U16]


@dataclass(frozen=True)
class BaseOption:
    """One way to build a base: the stored tensors, and the plan over them."""

    tensors: tuple[StoredTensor, ...]
    plan: BasePlan

    @property
    def depth(self) -> int:
        """The depth that a delta against this base has."""
        return 1 + max(tensor.depth for tensor in self.tensors)


class BaseMatcher:
    """Finds base options in candidates, for one planner. Not shared between threads."""

    def __init__(self, reg: Registry, reader: FileReader, domain_id: int) -> None:
        self._reg = reg
        self._reader = reader
        self._domain_id = domain_id
        self._probes: dict[tuple[int, tuple[int, ...]], _Probes] = {}
        self._layouts: dict[int, LayoutSearch] = {}  # by the candidate's revision

    def named(self, info: TensorInfo, candidate: Candidate) -> BaseOption | None:
        """The candidate's tensor of the same name."""
        tensor = candidate.by_name.get(info.name)
        return None if tensor is None else _aligned(info, tensor)

    def renamed(
        self, info: TensorInfo, candidate: Candidate, read: ReadTensor
    ) -> Iterator[BaseOption | None]:
        """Tensors of other names: other prefixes, then the nearest of the shape, then of layouts.

        Yields None for a tensor that cannot be aligned.
        """
        for tensor in candidate.with_other_prefix(info.name):
            yield _aligned(info, tensor)
        nearest = self._nearest(info, candidate, read)
        if nearest is not None:
            yield _aligned(info, nearest)
        for plan in self._layouts_of(candidate).find(info, read):
            tensors = [candidate.by_hash[base] for base in plan.base_ids()]
            yield BaseOption(tuple(tensors), plan)

    def up_the_chain(
        self, info: TensorInfo, option: BaseOption, max_depth: int
    ) -> list[BaseOption]:
        """The nearest base up the option's chain that leaves room for a delta, and the last one.

        None if there is none, or one if both are the same.
        """
        chain: list[BaseOption] = []
        while len(option.tensors) == 1 and option.depth > 1:
            nearer = self._base_of(option.tensors[0])
            aligned = None if nearer is None else _aligned(info, nearer)
            if aligned is None:
                break
            option = aligned
            if option.depth <= max_depth:
                chain.append(option)
        return chain if len(chain) < 2 else [chain[0], chain[-1]]

    def _layouts_of(self, candidate: Candidate) -> LayoutSearch:
        found = self._layouts.get(candidate.revision_id)
        if found is None:
            tensors = candidate.by_name.values()
            read_base = self._reader.base_reader(self._domain_id)
            found = self._layouts[candidate.revision_id] = LayoutSearch(
                tensors, read_base, unreadable=(DataLost,)
            )
        return found

    def _base_of(self, tensor: StoredTensor) -> StoredTensor | None:
        """The tensor that this one is a delta of, if both align element by element; else None."""
        with self._reg.db.read() as session:
            location = locate(session, [tensor.id]).get(tensor.id)
        if location is None or not location.frames or location.hash != tensor.hash:
            return None
        frame = location.frames[0]
        head = memoryview(bytearray(min(frame.length, 4096)))
        try:
            self._reg.store.get_into(pack_key(frame.pack_id), frame.offset, head)
            if peek_header_length(head[:16]) > len(head):
                return None
            header = parse_header(head)
        except (ObjectNotFound, CodecError):
            return None  # moved or damaged: no option is better than a wrong one
        if header.base is None or len(header.base.segments) != 1 or header.base.view is not None:
            return None
        segment = header.base.segments[0]
        with self._reg.db.read() as session:
            base = resolve(session, self._domain_id, [segment.tensor]).get(segment.tensor)
            # A revision that is not public may have named it last.
            if base is not None and not usable_bases(session, self._domain_id, [base.id]):
                return None
        n_bytes = header.tensor_count * segment.dtype.itemsize
        if base is None or base.lost is not None:
            return None
        if segment.start != 0 or base.size != n_bytes or base.depth >= tensor.depth:
            return None
        return StoredTensor(
            tensor.name, segment.dtype.name, tensor.shape, base.hash, base.id, base.depth
        )

    def _nearest(
        self, info: TensorInfo, candidate: Candidate, read: ReadTensor
    ) -> StoredTensor | None:
        """The tensor of this shape with the nearest middle elements, if at least MIN_NEARNESS."""
        if info.dtype not in FLOATS or info.count < PROBE_ELEMENTS:
            return None
        key = (candidate.revision_id, info.shape)
        if key not in self._probes:
            self._probes[key] = self._probe_all(candidate.by_shape.get(info.shape, ()), info.count)
        tensors, probes = self._probes[key]
        if not tensors:
            return None
        near = nearness(_probe(info.dtype, info.count, read), probes)
        best = int(near.argmax())
        return tensors[best] if near[best] >= MIN_NEARNESS else None

    def _probe_all(self, tensors: Iterable[StoredTensor], count: int) -> _Probes:
        fit = [tensor for tensor in tensors if tensor.dtype in FLOATS][:MAX_PROBED]
        self._reader.load_locations(self._domain_id, [tensor.id for tensor in fit])
        read_base = self._reader.base_reader(self._domain_id)
        probed: list[StoredTensor] = []
        rows: list[U16] = []
        for tensor in fit:
            try:
                rows.append(_probe(tensor.dtype, count, partial(read_base, tensor.hash)))
            except DataLost:
                continue  # deleted since the candidates were loaded, or unreadable
            probed.append(tensor)
        return probed, np.array(rows, dtype=np.uint16).reshape(len(rows), PROBE_ELEMENTS)


def _probe(dtype_name: str, count: int, read: ReadTensor) -> U16:
    """The middle elements as BF16."""
    dtype = DType.from_name(dtype_name)
    raw = bytearray(PROBE_ELEMENTS * dtype.itemsize)
    read((count - PROBE_ELEMENTS) // 2 * dtype.itemsize, memoryview(raw))
    return to_bf16(dtype, raw)


def _aligned(info: TensorInfo, tensor: StoredTensor) -> BaseOption | None:
    return _option([tensor], align(info, tensor))


def _option(tensors: list[StoredTensor], plan: BasePlan | None) -> BaseOption | None:
    return None if plan is None else BaseOption(tuple(tensors), plan)
