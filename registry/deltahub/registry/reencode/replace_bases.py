"""Stores deltas again against other bases, or standalone, because a base is about to leave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import NoResultFound

from deltahub.codecs.frames import TensorSpec, tensor_spec
from deltahub.registry.bases.planner import BaseChoice, BasePlanner, ReplannedTensor
from deltahub.registry.db.batches import PART_TENSORS
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.failpoints import reached
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate
from deltahub.registry.packs.switch import store_and_switch, switch_tensor
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.reencode.replan import dependent_deltas
from deltahub.registry.registry import Registry

# Packs of decoded bytes in one step, so that a kill loses little work.
PACKS_PER_STEP = 2


@dataclass(frozen=True)
class Delta:
    """A stored delta. name, dtype, shape: as its model names it; name None: no model does."""

    location: TensorLocation
    name: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()


class BaseReplacer:
    """Stores deltas again, a pack at a time. It may be killed at any time and run again."""

    def __init__(self, reg: Registry, reader: FileReader) -> None:
        self._reg = reg
        self._reader = reader
        self._planner: tuple[int, BasePlanner] | None = None  # of the revision with this row id

    def store(
        self, deltas: Sequence[Delta], revision_id: int | None, progress: Callable[[int], None]
    ) -> set[int]:
        """Store the first of these deltas, all of one domain; the rows that are done.

        The bases are chosen for a revision that names the deltas, among those that its readers may
        read; revision_id None: no bases. A delta that another process changed meanwhile stays as it
        is. progress(n): called after every n decoded bytes; may raise to stop. BaseGone, DeltaCycle
        and TensorGone if a chosen base changed meanwhile; StorageFull, DataLost.
        """
        taken: list[TensorLocation] = []

        def switch(session: WriteSession, sealed: SealedPacks) -> None:
            now = locate(session, [row.id for row in taken])
            for row in taken:
                if is_unchanged(row, now.get(row.id)):
                    new = sealed.tensors[row.hash]
                    max_depth = self._reg.settings.max_depth
                    switch_tensor(session, row.id, new.frames, new.bases, max_depth)
            reached("withdraw.switch.before_commit")

        n_bytes, pack_bytes = 0, self._reg.settings.pack_bytes
        with PackSpool(self._reg, self._reader, deltas[0].location.domain_id) as spool:
            for delta in deltas:
                is_full = spool.size_bytes >= pack_bytes // 2 or len(taken) == PART_TENSORS
                if is_full or n_bytes >= PACKS_PER_STEP * pack_bytes:
                    break
                taken.append(delta.location)
                n_bytes += delta.location.size
                self._encode(spool, delta, revision_id, progress)
            store_and_switch(self._reg, spool, switch)
        reached("withdraw.switch.after_commit")
        return {row.id for row in taken}

    def _encode(
        self,
        spool: PackSpool,
        delta: Delta,
        revision_id: int | None,
        progress: Callable[[int], None],
    ) -> None:
        row = delta.location
        read = partial(self._reader.read_tensor_into, row.id)
        choice = None
        if delta.name is None:
            header = self._reader.frames.open(row.frames[0]).view.header
            spec = TensorSpec(row.hash, header.dtype, 1, header.tensor_count)
        else:
            spec = tensor_spec(row.hash, delta.dtype, delta.shape)
            if revision_id is not None:
                choice = self._choose(delta, delta.name, revision_id)
        progress(0)
        spool.encode(spec, read, None if choice is None else choice.frame_plan, progress)

    def _choose(self, delta: Delta, name: str, revision_id: int) -> BaseChoice | None:
        if self._planner is None or self._planner[0] != revision_id:
            try:
                self._planner = revision_id, BasePlanner(self._reg, self._reader, revision_id)
            except NoResultFound:
                return None  # the revision has just been deleted
        row_id = delta.location.id
        with self._reg.db.read() as session:
            height = dependent_deltas(session, row_id)
        if height is None:
            return None
        read = partial(self._reader.read_tensor_into, row_id)
        stored = ReplannedTensor(row_id, height)
        return self._planner[1].plan(name, delta.dtype, delta.shape, read, stored)
