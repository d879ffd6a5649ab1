"""Re-planning: re-encode stored tensors as deltas of a base that arrived or was declared later.

A standalone tensor becomes a delta of any base that fits. A tensor that is a delta already becomes
a delta of the declared base only. Readers notice nothing, because only the frames of a tensor
change. If the declared base is a delta of the tensor, or the deltas that depend on the tensor leave
no depth for one more, the tensor stays as it is. The planner leaves out such bases, and the
transaction that switches a tensor checks again.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select

from deltahub.codecs.frames import tensor_spec
from deltahub.codecs.frames.base_choice import MUST_BEAT, MUST_SAVE
from deltahub.registry.bases.planner import BaseChoice, BasePlanner, ReplannedTensor
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import Frame, Tensor, TensorBase
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DeltaCycle, TensorNotFound
from deltahub.registry.failpoints import reached
from deltahub.registry.packs.locations import closure, resolve
from deltahub.registry.packs.reading.chain import MAX_CHAIN, TensorGone
from deltahub.registry.packs.switch import BaseGone, store_and_switch, switch_tensor
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry

log = logging.getLogger(__name__)

# A tensor with more dependents stays as it is, because a switch writes the depth of each.
MAX_DEPENDENTS = 1000


@dataclass(frozen=True)
class ReplanStep:
    """The outcome of a step. next_position: the start of the next step, None after the last one.

    Positions count the revision's tensors in a fixed order, so that a step can be repeated.
    """

    next_position: int | None
    switched: int = 0
    saved_bytes: int = 0
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class _StoredTensor:
    """A tensor of the revision, as it was stored when the re-planner was made."""

    id: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    hash: bytes
    size: int
    stored_bytes: int
    is_standalone: bool

    @property
    def max_delta_bytes(self) -> float:
        """The largest delta to switch to.

        A delta against the declared base may replace another delta even if it is up to 2 % larger,
        because clients that know the declaration have that base.
        """
        return self.stored_bytes * (1 - MUST_SAVE if self.is_standalone else 1 + MUST_BEAT)


class Replanner:
    """Re-plans one revision, a pack at a time. It may be killed at any time and run again.

    only: rows of the tensors to re-plan; by default all tensors of the revision.
    """

    def __init__(
        self,
        reg: Registry,
        reader: FileReader,
        revision_id: int,
        only: Collection[int] | None = None,
    ) -> None:
        self._reg = reg
        self._reader = reader
        self._revision_id = revision_id
        self._load_planner()
        self._target = self._planner.target
        self._tensors = [t for t in self._list_tensors() if only is None or t.id in only]
        self._total = sum(tensor.size for tensor in self._tensors)

    def _load_planner(self) -> None:
        """Make a planner, which loads the candidates as they are stored now."""
        self._planner = BasePlanner(self._reg, self._reader, self._revision_id)
        self._declared = next((c for c in self._planner.candidates if c.origin == "declared"), None)
        declared = () if self._declared is None else self._declared.by_name.values()
        self._declared_ids = frozenset(base.id for base in declared)

    def step(self, position: int, progress: Callable[[int, int], None] | None = None) -> ReplanStep:
        """Re-plan tensors from `position` until a pack is full or no tensor is left.

        progress(done_bytes, total_bytes) is called before each tensor. If it raises, the step ends
        and nothing is changed.
        """
        try:
            return self._step(position, progress)
        except TensorGone as exc:
            # A base or a tensor of the revision was deleted. Try once more without it; if bytes are
            # lost, the second try fails.
            log.info("revision %d is planned anew: %s", self._revision_id, exc)
            self._load_planner()
            return self._step(position, progress)

    def _step(self, position: int, progress: Callable[[int, int], None] | None) -> ReplanStep:
        batch: dict[bytes, _StoredTensor] = {}
        done = sum(tensor.size for tensor in self._tensors[:position])
        with PackSpool(self._reg, self._reader, self._target.domain_id) as spool:
            while position < len(self._tensors):
                tensor = self._tensors[position]
                if spool.size_bytes >= self._reg.settings.pack_bytes // 2:
                    break
                if progress is not None:
                    progress(done, self._total)
                self._encode(spool, batch, tensor)
                position += 1
                done += tensor.size
            saved: list[int] = []
            if not spool.is_empty:
                store_and_switch(self._reg, spool, partial(self._switch, batch, saved))
                reached("replan.switch.after_commit")
        next_position = position if position < len(self._tensors) else None
        return ReplanStep(next_position, len(saved), sum(saved), done, self._total)

    def _encode(
        self, spool: PackSpool, batch: dict[bytes, _StoredTensor], tensor: _StoredTensor
    ) -> None:
        if tensor.hash in spool or not self._may_switch(tensor):
            return
        with self._reg.db.read() as session:
            height = dependent_deltas(session, tensor.id)
        if height is None:
            return
        choice = self._choose(tensor, ReplannedTensor(tensor.id, height))
        if choice is None:
            return
        read = partial(self._reader.read_tensor_into, tensor.id)
        spec = tensor_spec(tensor.hash, tensor.dtype, tensor.shape)
        spool.encode(spec, read, choice.frame_plan)
        batch[tensor.hash] = tensor

    def _choose(self, tensor: _StoredTensor, stored: ReplannedTensor) -> BaseChoice | None:
        """The base to switch the tensor to, or None."""
        read = partial(self._reader.read_tensor_into, tensor.id)
        choice = self._planner.plan(tensor.name, tensor.dtype, tensor.shape, read, stored)
        if choice is None or choice.ratio * tensor.size > tensor.max_delta_bytes:
            return None
        declared = None if self._declared is None else self._declared.revision_id
        return choice if tensor.is_standalone or choice.revision_id == declared else None

    def _may_switch(self, tensor: _StoredTensor) -> bool:
        """Whether the tensor exists and is standalone, or a delta but not of the declared base."""
        if not self._exists(tensor):
            return False
        if tensor.is_standalone:
            return True
        if self._declared is None:
            return False
        with self._reg.db.read() as session:
            return self._declared_ids.isdisjoint(closure(session, [tensor.id]))

    def _exists(self, tensor: _StoredTensor) -> bool:
        with self._reg.db.read() as session:
            return self._is_row_of(tensor, session.get(Tensor, tensor.id))

    def _is_row_of(self, tensor: _StoredTensor, row: Tensor | None) -> bool:
        """Whether the row still holds the tensor: SQLite reuses the ids of deleted rows."""
        if row is None:
            return False
        return (row.hash, row.domain_id) == (tensor.hash, self._target.domain_id)

    def _switch(
        self,
        batch: dict[bytes, _StoredTensor],
        saved: list[int],
        session: WriteSession,
        sealed: SealedPacks,
    ) -> None:
        """Switch the tensors whose deltas are worth it, and add the saved bytes of each to `saved`.

        A tensor that would close a cycle, or whose base was deleted, stays as it is.
        """
        for content, tensor in sealed.tensors.items():
            stored = batch[content]
            row = session.get(Tensor, stored.id)
            n_bytes = sum(frame.length for frame in tensor.frames)
            # Frames that are not switched to are dead bytes of the new pack; gc collects them.
            if not tensor.bases or n_bytes > stored.max_delta_bytes:
                continue
            if row is None or not self._is_row_of(stored, row):
                continue
            if stored.is_standalone and row.depth > 0:
                continue  # another job has switched it already
            try:
                with session.begin_nested():
                    max_depth = self._reg.settings.max_depth
                    switch_tensor(session, stored.id, tensor.frames, tensor.bases, max_depth)
            except (DeltaCycle, BaseGone, TensorNotFound):
                continue
            saved.append(stored.stored_bytes - n_bytes)
        reached("replan.switch.before_commit")

    def _list_tensors(self) -> list[_StoredTensor]:
        """The revision's distinct named tensors that are stored in its own domain."""
        with self._reg.db.read() as session:
            files = list(session.scalars(safetensors_files(self._revision_id)))
        found: dict[bytes, _StoredTensor] = {}
        for file in files:
            refs = named_tensors(self._reader, file)
            with self._reg.db.read() as session:
                rows = resolve(session, self._target.domain_id, (ref.tensor for _, ref in refs))
                stored_bytes: dict[int, int] = {}
                for batch in batches(row.id for row in rows.values()):
                    lengths = session.execute(
                        select(Frame.tensor_id, total(Frame.length))
                        .where(Frame.tensor_id.in_(batch))
                        .group_by(Frame.tensor_id)
                    )
                    stored_bytes.update((tensor, length) for tensor, length in lengths)
            for name, ref in refs:
                row = rows.get(ref.tensor)
                # Public tensors of a private model belong to their public owner.
                if row is None or row.domain_id != self._target.domain_id:
                    continue
                found.setdefault(
                    row.hash,
                    _StoredTensor(
                        id=row.id,
                        name=name,
                        dtype=ref.dtype,
                        shape=ref.shape,
                        hash=row.hash,
                        size=row.size,
                        stored_bytes=stored_bytes.get(row.id, 0),
                        is_standalone=row.depth == 0,
                    ),
                )
        return list(found.values())


def dependent_deltas(session: ReadSession, tensor_id: int) -> int | None:
    """The length of the longest chain of deltas that depend on a tensor.

    None if more than MAX_DEPENDENTS tensors depend on it, or the chain has MAX_CHAIN deltas.
    """
    dependents: set[int] = set()
    level, height = {tensor_id}, 0
    while True:
        next_level: set[int] = set()
        for batch in batches(level):
            query = select(TensorBase.tensor_id).where(TensorBase.base_id.in_(batch))
            next_level.update(session.scalars(query.limit(MAX_DEPENDENTS + 1)))
        if not next_level:
            return height
        level, height = next_level, height + 1
        dependents |= level
        if len(dependents) > MAX_DEPENDENTS or height >= MAX_CHAIN:
            return None
