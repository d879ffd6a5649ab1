"""Marks what is lost, and takes the marks from what can be read again.

It deletes nothing. A mark says that the bytes have to be pushed again; rows and objects stay, and
readers still try them. Every step may be repeated, and interrupted at any line. It may run beside a
working hub: each transaction checks again what was seen before it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from blake3 import blake3
from sqlalchemy import exists, or_, select, update

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.pack import verify_pack_hash
from deltahub.registry.db.batches import batches
from deltahub.registry.db.integrity import file_damage
from deltahub.registry.db.models import (
    Entry,
    File,
    Frame,
    Landing,
    Pack,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.failpoints import reached
from deltahub.registry.landings.reader import hashes_of
from deltahub.registry.losses.marks import (
    FRAMES,
    any_lost,
    clear_marks,
    mark_packs,
    mark_tensors,
)
from deltahub.registry.losses.presence import check_store_is_there, is_missing
from deltahub.registry.packs.copy import pack_chunks
from deltahub.registry.packs.locations import TensorLocation, is_unchanged, locate
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, StoreError
from deltahub.registry.storage.keys import landing_key, pack_key
from deltahub.registry.uploads.landing import complete
from deltahub.registry.xet.epochs import advance_epoch

# Tensors that are judged between two transactions.
PAGE = 200


@dataclass
class Repaired:
    """What changed. notes: what stays as it is, because reading it failed for now."""

    damaged_packs: int = 0
    restored_packs: int = 0
    lost_tensors: int = 0
    restored_tensors: int = 0
    restored_uploads: int = 0
    notes: list[str] = field(default_factory=list)


def repair(
    reg: Registry,
    *,
    read_data: bool = False,
    accept_loss: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Repaired:
    """Mark packs, tensors and files whose bytes are lost; unmark those that can be read again.

    read_data: read every pack and tensor. Otherwise only packs that are missing or of another size
    count, and only tensors of damaged packs and marked tensors are read. StoreSeemsAway if more
    than half of the packs are missing, unless accept_loss. DataLost if the database itself is
    damaged, because its rows might then name the wrong things.
    """
    for damage in file_damage(reg.db, most=1):
        raise DataLost(
            f"the database is damaged, so nothing was marked; restore it first: {damage}"
        )
    work = _Repair(reg, read_data)
    progress("packs, for damage")
    work.mark_packs(accept_loss)
    progress("tensors, for losses")
    work.mark_tensors()
    progress("uploads, for damage")
    work.restore_uploads()
    work.advance_epochs()
    return work.done


class _Repair:
    """One run. A new reader, because the cache of an older one would hide damage in the store."""

    def __init__(self, reg: Registry, read_data: bool) -> None:
        self.done = Repaired()
        self._reg = reg
        self._read_data = read_data
        self._reader = FileReader(reg)
        self._reader.marks_damage = False
        self._missing: set[str] = set()
        self._damaged: set[str] = set()

    def mark_packs(self, accept_loss: bool) -> None:
        """Mark damaged packs, and the tensors of those that are missing; unmark whole packs."""
        with self._reg.db.read() as session:
            packs = session.scalars(select(Pack).where(Pack.state.in_(("live", "damaged")))).all()
        live = {pack.id for pack in packs if pack.state == "live"}
        self._missing = {pack.id for pack in packs if is_missing(self._reg, pack.id)}
        if not accept_loss:
            check_store_is_there(len(self._missing & live), len(live))
        self._mark_missing(self._missing)
        changed = {pack.id for pack in packs if self._is_suspect(pack) and not self._is_whole(pack)}
        for batch in batches(sorted(changed)):
            with self._reg.db.write() as session:
                mark_packs(session, batch)
        self._damaged = self._missing | changed
        self.done.damaged_packs = len(self._damaged & live)
        for pack in packs:
            if pack.state == "damaged" and pack.id not in self._damaged:
                self._restore_pack(pack.id)

    def restore_uploads(self) -> None:
        """Unmark the damaged uploads that are whole again: an operator has brought them back."""
        with self._reg.db.read() as session:
            damaged = session.scalars(select(Landing).where(Landing.state == "damaged")).all()
        for landing in damaged:
            hashes = hashes_of(self._reg, landing_key(landing.id), landing.size)
            if hashes is None or hashes.sha256 != landing.sha256:
                continue
            with self._reg.db.write() as session:
                row = session.get(Landing, landing.id)
                if row is not None and row.state == "damaged":
                    complete(session, row, hashes, self._reg.settings.upload_ttl_s)
                    self.done.restored_uploads += 1

    def _mark_missing(self, packs: Collection[str]) -> None:
        for batch in batches(sorted(packs)):
            with self._reg.db.write() as session:
                tensors = mark_packs(session, batch)
                self.done.lost_tensors += len(tensors) - _count_lost(session, tensors)
                mark_tensors(session, tensors)
                reached("repair.packs.before_commit")
            reached("repair.packs.after_commit")

    def _is_suspect(self, pack: Pack) -> bool:
        """Whether the bytes of the pack, which is not missing, have to be read."""
        if pack.id in self._missing:
            return False
        if self._read_data or pack.state == "damaged":
            return True
        return self._reg.store.size(pack_key(pack.id)) != pack.size

    def _is_whole(self, pack: Pack) -> bool:
        try:
            return verify_pack_hash(pack_chunks(self._reg, pack.id)) == pack.hash
        except (CodecError, ObjectNotFound, ShortObject):
            return False
        except StoreError as exc:  # the disk may be mended; what its pack holds is judged by itself
            self.done.notes.append(f"pack {pack.id} stays as it is: {exc}")
            return pack.state == "live"

    def _restore_pack(self, pack_id: str) -> None:
        with self._reg.db.write() as session:
            session.execute(
                update(Pack)
                .where(Pack.id == pack_id, Pack.state == "damaged")
                .values(state="live")
                .execution_options(synchronize_session=False)
            )
        self.done.restored_packs += 1

    def mark_tensors(self) -> None:
        """Read suspect tensors, bases before their deltas, and mark or unmark them."""
        with self._reg.db.read() as session:
            depths = session.scalars(select(Tensor.depth).distinct().order_by(Tensor.depth)).all()
        for depth in depths:
            for tensors in self._pages(depth):
                self._judge(tensors)

    def advance_epochs(self) -> None:
        """Let Xet clients forget which chunks they have sent to repositories with lost files."""
        with self._reg.db.write() as session:
            repositories = session.scalars(
                select(Revision.repository_id)
                .join(Entry, Entry.revision_id == Revision.id)
                .join(File, File.id == Entry.file_id)
                .where(File.state == "lost")
                .distinct()
            ).all()
            for repository in repositories:
                advance_epoch(session, repository)

    def _pages(self, depth: int) -> Iterator[list[int]]:
        """The tensors of this depth to judge, a page at a time."""
        in_damaged = exists(
            select(Frame.tensor_id)
            .join(Pack, Pack.id == Frame.pack_id)
            .where(Frame.tensor_id == Tensor.id, Pack.state == "damaged")
        )
        wanted = select(Tensor.id).where(Tensor.depth == depth)
        if not self._read_data:
            wanted = wanted.where(or_(Tensor.lost.is_not(None), in_damaged))
        last = 0
        while True:
            with self._reg.db.read() as session:
                page = list(
                    session.scalars(wanted.where(Tensor.id > last).order_by(Tensor.id).limit(PAGE))
                )
            if not page:
                return
            yield page
            last = page[-1]

    def _judge(self, tensor_ids: Sequence[int]) -> None:
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
        if packs & self._missing:
            return True
        digest = blake3()
        try:
            for piece in self._reader.stream_tensor({tensor.id: tensor}, tensor.id, 0, tensor.size):
                digest.update(piece)
        except DataLost:
            return bool(packs & self._damaged) or not self._is_base_lost(tensor)
        except StoreError as exc:
            self.done.notes.append(f"tensor {tensor.hash.hex()} stays as it is: {exc}")
            return None
        return digest.digest() != tensor.hash

    def _is_base_lost(self, tensor: TensorLocation) -> bool:
        base = select(TensorBase.base_id).where(TensorBase.tensor_id == tensor.id)
        with self._reg.db.read() as session:
            return any_lost(session, session.scalars(base).all())


def _marks(session: ReadSession, tensor_ids: Sequence[int]) -> dict[int, str | None]:
    rows = session.execute(select(Tensor.id, Tensor.lost).where(Tensor.id.in_(tensor_ids)))
    return {tensor: lost for tensor, lost in rows}


def _count_lost(session: ReadSession, tensor_ids: Sequence[int]) -> int:
    return sum(
        lost is not None
        for batch in batches(tensor_ids)
        for lost in _marks(session, batch).values()
    )
