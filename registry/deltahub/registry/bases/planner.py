"""Choosing the base of each tensor of a revision, by coding a sample against every candidate."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltahub.codecs.casts import CASTABLE
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames import (
    BasePlan,
    BaseSegment,
    FrameRange,
    TensorSpec,
    assemble,
    encode_frame,
)
from deltahub.codecs.frames.base_plan import ReadBase
from deltahub.codecs.frames.choose_codec import sample_runs
from deltahub.registry.bases.alignment import BaseOption, TensorInfo, coded_as, slice_plan
from deltahub.registry.bases.candidates import Candidate, find_candidates, load_candidates
from deltahub.registry.bases.matching import Matcher
from deltahub.registry.bases.precedence import Directions
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.lineage.model_sketch import sketch_revision
from deltahub.registry.lineage.target import Target
from deltahub.registry.lineage.tensor_sketch import Read, nearness, to_bf16
from deltahub.registry.packs.tensor_reader import TensorGone
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# Below this a delta's header and tables outweigh what it can save.
MIN_DELTA_BYTES = 1024
# A delta ties the tensor to its base; it must be worth at least this.
MUST_SAVE = 0.03
# Weights of two trainings lie a quarter of an octave apart in some 7 % of places.
MIN_NEARNESS = 0.25
# Candidates are in order of trust; a later one must be smaller by this.
MUST_BEAT = 0.02
# A base by name that gets below this share of standing alone ends the search.
GOOD_ENOUGH = 0.75
# After so many tensors, candidates that never won are not tried again.
TRIALS = 8
KEPT_CANDIDATES = 2


@dataclass(frozen=True)
class BaseChoice:
    """The base that a tensor should be coded against.

    plan: over the whole tensor; frame_plan() cuts out one frame's part. bases: rows of the
    tensors it reads. ratio: sampled size of the delta as a share of the raw bytes. revision_id:
    the candidate that it was found in.
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
class StoredAs:
    """How a tensor that looks for a better base is stored.

    height: deltas one upon the other that depend on it; its own depth leaves room for them.
    """

    id: int
    height: int = 0


class BasePlanner:
    """Chooses bases for one revision's tensors. Not shared between threads.

    Its candidates are fixed when it is made; what it says is advice. Whoever switches a tensor to
    a base checks again, in the transaction, that the base is there and the chain short enough.
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
        self._matcher = Matcher(reg, self._reader, self.target.domain_id)
        self._directions = Directions(reg, self.target)
        self._wins: Counter[int] = Counter()
        self._n_plans = 0

    def plan(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        read: Read,
        stored: StoredAs | None = None,
    ) -> BaseChoice | None:
        """The base that makes this tensor smallest, or None where standing alone is smaller.

        read(first_byte, out): the tensor's own bytes. stored: how it is stored, if it is already.
        """
        info = TensorInfo(name, dtype, tuple(shape))
        coded = coded_as(dtype)
        if coded is None or info.count * coded.itemsize < MIN_DELTA_BYTES or not self.candidates:
            return None
        trial = _Trial(info, coded, read, self._read_base)
        for candidate in self._tried():
            self._try(trial, self._matcher.named(info, candidate), candidate, stored)
        # A name is only a hint; but where nothing was a relative so far, nothing will be.
        if trial.ratio > GOOD_ENOUGH * trial.alone and (self._wins or self._n_plans < TRIALS):
            for candidate in self._tried():
                for option in self._matcher.renamed(info, candidate, read):
                    self._try(trial, option, candidate, stored)
        self._n_plans += 1
        if trial.best is None or pays_as_anchor(trial.alone, trial.ratio, trial.too_deep):
            return None
        option, candidate = trial.best
        self._wins[candidate.revision_id] += 1
        return BaseChoice(
            plan=option.plan,
            bases=tuple(dict.fromkeys(tensor.id for tensor in option.tensors)),
            ratio=trial.ratio,
            revision_id=candidate.revision_id,
            dtype=coded,
        )

    def _try(
        self,
        trial: "_Trial",
        option: BaseOption | None,
        candidate: Candidate,
        stored: StoredAs | None,
    ) -> None:
        if option is None:
            return
        room = self._reg.settings.max_depth - (0 if stored is None else stored.height)
        if not self._directions.allows(option, candidate, None if stored is None else stored.id):
            return
        reachable = self._matcher.within_depth(trial.info, option, room)
        if reachable is not option:
            trial.note_too_deep(option)
        if reachable is not None:
            trial.run(reachable, candidate)

    def _tried(self) -> list[Candidate]:
        if self._n_plans < TRIALS or not self._wins:
            return self.candidates
        kept = {revision for revision, _ in self._wins.most_common(KEPT_CANDIDATES)}
        return [c for c in self.candidates if c.revision_id in kept]


class _Trial:
    """One tensor's sample, coded against option after option; the smallest stays."""

    def __init__(self, info: TensorInfo, dtype: DType, read: Read, read_base: ReadBase) -> None:
        self.info = info
        self.best: tuple[BaseOption, Candidate] | None = None
        self._dtype = dtype
        self._read_base = read_base
        self._ranges = list(sample_runs(info.count))
        self._count = sum(count for _, count in self._ranges)
        self._sample = bytearray(self._count * dtype.itemsize)
        for (start, _), out in self._runs(self._sample):
            read(start * dtype.itemsize, out)
        self.alone = self._coded_share("auto", None)
        # What the next option has to stay below.
        self._limit = self.alone * (1 - MUST_SAVE)
        self.ratio = self.too_deep = self.alone
        self._seen: set[BasePlan] = set()

    def run(self, option: BaseOption, candidate: Candidate) -> None:
        """Keep the option if it codes the sample smaller than all before it."""
        if option.plan in self._seen:
            return
        self._seen.add(option.plan)
        ratio = self._delta_share(option)
        if ratio is not None and ratio < self._limit:
            self.best, self.ratio = (option, candidate), ratio
            # Among near equals the first stays: candidates come in the order of trust.
            self._limit = ratio * (1 - MUST_BEAT)

    def note_too_deep(self, option: BaseOption) -> None:
        """Remember what a base would give that the depth does not allow."""
        ratio = self._delta_share(option)
        if ratio is not None:
            self.too_deep = min(self.too_deep, ratio)

    def _delta_share(self, option: BaseOption) -> float | None:
        base = bytearray(len(self._sample))
        try:
            for (start, count), out in self._runs(base):
                assemble(option.plan, self._dtype, start, count, self._read_base, out)
        except TensorGone:
            return None  # deleted since the candidates were loaded
        except DataLost as exc:
            log.warning("a base that cannot be read is not used: %s", exc)
            return None
        return None if self._is_unrelated(base) else self._coded_share("fm_delta", base)

    def _is_unrelated(self, base: bytearray) -> bool:
        """True for weights of another training, whose likeness is that of all weights.

        A delta against them saves a few percent (the exponents are alike), which is no reason to
        need them for ever.
        """
        if self._dtype not in CASTABLE:
            return False
        name = self._dtype.name
        near = nearness(to_bf16(name, self._sample), to_bf16(name, base))
        return bool(near < MIN_NEARNESS)

    def _coded_share(self, codec: str, base: bytearray | None) -> float:
        # The ids stand for the sampled tensors in frames that nobody keeps.
        spec = TensorSpec(b"\x01" * 32, self._dtype, 1, self._count)
        part = FrameRange(0, self._count, 1, self._count)
        segment = BaseSegment(b"\x02" * 32, self._dtype, 0, self._count)
        plan = None if base is None else BasePlan((segment,), is_cast=False)
        return len(encode_frame(spec, part, self._sample, base, plan, codec)) / len(self._sample)

    def _runs(self, buffer: bytearray) -> Iterator[tuple[tuple[int, int], memoryview]]:
        position = 0
        for start, count in self._ranges:
            size = count * self._dtype.itemsize
            yield (start, count), memoryview(buffer)[position : position + size]
            position += size


def pays_as_anchor(alone: float, reachable: float, direct: float) -> bool:
    """Whether a tensor at the end of a full chain should begin a new one.

    All as shares of its raw bytes: standing alone, as a delta of the nearest base that the
    depth allows, and as a delta of its real predecessor, which lies too deep (alone again, where
    there is none). The next one in the line will be in the same place: it saves what lies between
    reachable and direct if this tensor is an anchor, and that is worth what the anchor costs now.
    """
    cost = alone - reachable
    saving_of_a_child = reachable - direct
    return saving_of_a_child > cost
