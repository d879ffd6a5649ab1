"""Chooses the base of each tensor of a revision by coding a sample against each candidate."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import BasePlan, FrameRange
from deltahub.codecs.frames.base_choice import (
    FREE_DEPTH,
    GOOD_ENOUGH,
    MIN_DELTA_BYTES,
    BaseSearch,
    TensorInfo,
    coded_as,
)
from deltahub.codecs.frames.base_plan import ReadTensor, slice_plan
from deltahub.registry.bases.candidates import Candidate, find_candidates, load_candidates
from deltahub.registry.bases.matching import BaseMatcher, BaseOption
from deltahub.registry.bases.precedence import Precedence
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.lineage.model_sketch import sketch_revision
from deltahub.registry.lineage.target import Target
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.packs.reading.limits import bytes_to_read, reads_too_much
from deltahub.registry.packs.reading.views import has_turned, is_turned
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# After MIN_PLANS tensors, only the KEPT_CANDIDATES that were chosen most often are tried.
MIN_PLANS = 8
KEPT_CANDIDATES = 2


@dataclass(frozen=True)
class BaseChoice:
    """The base that a tensor should be coded against.

    plan: over the whole tensor. bases: row ids of the tensors that the plan reads. ratio: size of
    the delta of a sample, as a share of its raw bytes. revision_id: the candidate with the base.
    dtype: the coding dtype of the tensor.
    """

    plan: BasePlan
    bases: tuple[int, ...]
    ratio: float
    revision_id: int
    dtype: DType

    def frame_plan(self, part: FrameRange) -> BasePlan:
        """The plan for one frame of the tensor."""
        return slice_plan(self.plan, self.dtype, part.start, part.count)


@dataclass(frozen=True)
class ReplannedTensor:
    """A stored tensor that is planned again.

    height: length of the longest chain of deltas on top of it; its depth leaves room.
    """

    id: int
    height: int = 0


class BasePlanner:
    """Chooses bases for one revision's tensors. Not shared between threads.

    The candidates are fixed at construction, and choices are advice. The transaction that switches
    a tensor to a base checks again that the base exists and that the chain is short enough.
    """

    def __init__(self, reg: Registry, reader: FileReader, revision_id: int) -> None:
        self._reg = reg
        self._reader = reader
        with reg.db.read() as session:
            self.target = Target.load(session, revision_id)
        sketches = list(sketch_revision(reg, self._reader, revision_id))
        with reg.db.read() as session:
            wanted = find_candidates(session, self.target, sketches)
        self.candidates = load_candidates(reg, self._reader, self.target, wanted)
        self._read_base = self._reader.base_reader(self.target.domain_id)
        self._matcher = BaseMatcher(reg, self._reader, self.target.domain_id)
        self._precedence = Precedence(reg, self.target)
        self._wins: Counter[int] = Counter()
        self._n_plans = 0

    def plan(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        read: ReadTensor,
        stored: ReplannedTensor | None = None,
    ) -> BaseChoice | None:
        """The base with the smallest delta of this tensor, or None if the tensor should have none.

        read: reads the tensor's bytes. stored: its row, if it is stored already.
        """
        info = TensorInfo(name, dtype, tuple(shape))
        coded = coded_as(dtype)
        if coded is None or info.count * coded.itemsize < MIN_DELTA_BYTES or not self.candidates:
            return None
        search = BaseSearch(coded, info.count, read, self._read_base)
        tried: dict[BasePlan, tuple[BaseOption, Candidate]] = {}
        for candidate in self._candidates_to_try():
            named = self._matcher.named(info, candidate)
            self._try(search, info, named, candidate, stored, tried)
        # Names may differ. But if no candidate fitted the first MIN_PLANS tensors, none will fit.
        is_far = search.ratio > GOOD_ENOUGH * search.standalone
        if is_far and (self._wins or self._n_plans < MIN_PLANS):
            for candidate in self._candidates_to_try():
                for option in self._matcher.renamed(info, candidate, read):
                    self._try(search, info, option, candidate, stored, tried)
        self._n_plans += 1
        if search.best is None or search.pays_as_anchor(self._max_depth(stored)):
            return None
        chosen, candidate = tried[search.best]
        self._wins[candidate.revision_id] += 1
        return BaseChoice(
            plan=chosen.plan,
            bases=tuple(dict.fromkeys(tensor.id for tensor in chosen.tensors)),
            ratio=search.ratio,
            revision_id=candidate.revision_id,
            dtype=coded,
        )

    def _try(
        self,
        search: BaseSearch,
        info: TensorInfo,
        option: BaseOption | None,
        candidate: Candidate,
        stored: ReplannedTensor | None,
        tried: dict[BasePlan, tuple[BaseOption, Candidate]],
    ) -> None:
        """Offer the option; if its chain is at its limit, bases up the chain instead."""
        if option is None:
            return
        if not self._precedence.allows(option, candidate, None if stored is None else stored.id):
            return
        if self._may_turn_twice(option, stored):
            return
        max_depth = self._max_depth(stored)
        options = [option]
        if option.depth > max_depth or self._reads_too_much(option, info):
            with _skipping_lost_bases():
                search.note_too_deep(option.plan)
            options = self._matcher.up_the_chain(info, option, max_depth)
        for each in options:
            tried.setdefault(each.plan, (each, candidate))
            with _skipping_lost_bases():
                search.offer(each.plan, max_depth - each.depth, each.depth)

    def _may_turn_twice(self, option: BaseOption, stored: ReplannedTensor | None) -> bool:
        """Whether a chain may get two transposed bases; one on top of `stored` may be one."""
        is_base_of_others = stored is not None and stored.height > 0
        if not (is_turned(option.plan) or is_base_of_others):
            return False
        if is_turned(option.plan) and is_base_of_others:
            return True
        with _skipping_lost_bases():
            return has_turned(self._reader, [each.id for each in option.tensors if each.depth])
        return True

    def _max_depth(self, stored: ReplannedTensor | None) -> int:
        return self._reg.settings.max_depth - (0 if stored is None else stored.height)

    def _reads_too_much(self, option: BaseOption, info: TensorInfo) -> bool:
        """Whether a reader of the delta would read too many bytes for each byte that it gets."""
        if option.depth <= FREE_DEPTH:
            return False
        with self._reg.db.read() as session:
            (base_bytes,) = bytes_to_read(session, [[tensor.id for tensor in option.tensors]])
        coded = coded_as(info.dtype)
        return coded is not None and reads_too_much(
            option.depth, base_bytes, info.count * coded.itemsize
        )

    def _candidates_to_try(self) -> list[Candidate]:
        if self._n_plans < MIN_PLANS or not self._wins:
            return self.candidates
        kept = {revision for revision, _ in self._wins.most_common(KEPT_CANDIDATES)}
        return [c for c in self.candidates if c.revision_id in kept]


@contextmanager
def _skipping_lost_bases() -> Iterator[None]:
    try:
        yield
    except TensorGone:
        pass  # deleted since the candidates were loaded
    except DataLost as exc:
        log.warning("a base that cannot be read is not used: %s", exc)
