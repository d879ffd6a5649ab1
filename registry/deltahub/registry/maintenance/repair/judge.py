"""Reads suspect tensors, and sets or takes away their marks. fsck --repair and scrub use it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from blake3 import blake3
from sqlalchemy import select

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Revision, Tensor, TensorBase
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.failpoints import reached
from deltahub.registry.losses.marks import FRAMES, any_lost, clear_marks, mark_tensors
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError
from deltahub.registry.xet.epochs import advance_epoch


@dataclass
class Repaired:
    """What changed. salvaged_tensors: moved out of damaged packs, to new ones. notes: what stays as
    it is, because reading it failed for now.
    """

    damaged_packs: int = 0
    restored_packs: int = 0
    lost_tensors: int = 0
    restored_tensors: int = 0
    restored_uploads: int = 0
    salvaged_tensors: int = 0
    packs_from_copies: int = 0
    notes: list[str] = field(default_factory=list)


class TensorJudge:
    """Judges tensors by what the store has now. A new reader, because the cache of an older one
    would hide damage.

    missing, damaged: packs, which may be changed between two calls; a missing one is damaged, too.
    """

    def __init__(
        self, reg: Registry, done: Repaired, missing: Collection[str], damaged: Collection[str]
    ) -> None:
        self.done = done
        self.missing = missing
        self.damaged = damaged
        self._reg = reg
        self._reader = FileReader(reg)
        self._reader.marks_damage = False

    def judge(self, tensor_ids: Sequence[int]) -> None:
        """Read these tensors, whose bases are judged already, and set their marks."""
        located = self._reader.locate(tensor_ids)
        read = {tensor: located[tensor] for tensor in tensor_ids if tensor in located}
        is_lost = {tensor: self._is_lost(then) for tensor, then in read.items()}
        with self._reg.db.write() as session:
            now = locate(session, read)
            marks = _marks(session, list(read))
            same = [tensor for tensor, then in read.items() if is_unchanged(then, now.get(tensor))]
            lost = [tensor for tensor in same if is_lost[tensor] is True]
            right = [tensor for tensor in same if is_lost[tensor] is False]
            self.done.lost_tensors += sum(marks[tensor] is None for tensor in lost)
            mark_tensors(session, [tensor for tensor in lost if marks[tensor] != FRAMES])
            clear_marks(session, [tensor for tensor in right if marks[tensor] is not None])
            after = _marks(session, right)
            self.done.restored_tensors += sum(
                marks[tensor] is not None and after[tensor] is None for tensor in right
            )
            reached("repair.tensors.before_commit")
        reached("repair.tensors.after_commit")

    def _is_lost(self, tensor: TensorLocation) -> bool | None:
        """Whether the tensor's own frames are lost; None if the store failed.

        If a base is lost, they are right as far as the packs are that they lie in.
        """
        packs = {frame.pack_id for frame in tensor.frames}
        if packs.intersection(self.missing):
            return True
        digest = blake3()
        try:
            for piece in self._reader.stream_tensor({tensor.id: tensor}, tensor.id, 0, tensor.size):
                digest.update(piece)
        except DataLost:
            return bool(packs.intersection(self.damaged)) or not self._is_base_lost(tensor)
        except StoreError as exc:
            self.done.notes.append(f"tensor {tensor.hash.hex()} stays as it is: {exc}")
            return None
        return digest.digest() != tensor.hash

    def _is_base_lost(self, tensor: TensorLocation) -> bool:
        base = select(TensorBase.base_id).where(TensorBase.tensor_id == tensor.id)
        with self._reg.db.read() as session:
            return any_lost(session, session.scalars(base).all())


def advance_epochs(reg: Registry) -> None:
    """Let Xet clients forget which chunks they have sent to repositories with lost files."""
    with reg.db.write() as session:
        repositories = session.scalars(
            select(Revision.repository_id)
            .join(Entry, Entry.revision_id == Revision.id)
            .join(File, File.id == Entry.file_id)
            .where(File.state == "lost")
            .distinct()
        ).all()
        for repository in repositories:
            advance_epoch(session, repository)


def _marks(session: ReadSession, tensor_ids: Sequence[int]) -> dict[int, str | None]:
    rows = session.execute(select(Tensor.id, Tensor.lost).where(Tensor.id.in_(tensor_ids)))
    return {tensor: lost for tensor, lost in rows}


def count_lost(session: ReadSession, tensor_ids: Sequence[int]) -> int:
    return sum(
        lost is not None
        for batch in batches(tensor_ids)
        for lost in _marks(session, batch).values()
    )
