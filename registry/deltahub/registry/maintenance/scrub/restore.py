"""What happens to a damaged object: it is put back from what is right elsewhere, or marked.

A pack comes back from its second copy. Without one its lost tensors are stored again from another
place that has the same bytes: another domain, or an upload that is still there. What is left is
marked, so that the next push of the same bytes brings it back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import func, select, update

from deltahub.codecs.files.recipe import TensorRef
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, Frame, Landing, Pack, Tensor, Xorb
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost, Unavailable
from deltahub.registry.failpoints import reached
from deltahub.registry.ingest.repair_tensors import store_again
from deltahub.registry.landings.damage import mark_damaged, restore_lost
from deltahub.registry.losses import findings
from deltahub.registry.losses.marks import FRAMES, mark_packs, mark_tensors
from deltahub.registry.losses.presence import check_sample
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.maintenance.repair.judge import (
    Repaired,
    TensorJudge,
    advance_epochs,
    count_lost,
)
from deltahub.registry.maintenance.repair.salvage import salvage
from deltahub.registry.maintenance.repair.uploads import restore_upload
from deltahub.registry.maintenance.scrub.prove import prove
from deltahub.registry.packs.encode import Read
from deltahub.registry.packs.locations import TensorLocation, locate
from deltahub.registry.registry import Registry
from deltahub.registry.replicas import copies
from deltahub.registry.storage.base import ObjectNotFound, StoreUnavailable
from deltahub.registry.xet.epochs import advance_epoch
from deltahub.registry.xet.receive_xorb import condemn

# Packs that are asked for when one is missing, to tell a loss from a store that is away.
SAMPLE: Final = 20
# Tensors that are judged between two transactions.
_PAGE: Final = 200


@dataclass
class Restored(Repaired):
    """What a scrub changed, besides what fsck --repair counts.

    copies: second copies written, or written again. tensors_from_elsewhere: lost tensors that were
    stored again. files_from_uploads: lost files that are read from an upload.
    """

    copies: int = 0
    tensors_from_elsewhere: int = 0
    files_from_uploads: int = 0
    dropped_xorbs: int = 0


class Restorer:
    """Restores one damaged object after another. Every step may be repeated, and interrupted."""

    def __init__(self, reg: Registry) -> None:
        self.done = Restored()
        self._reg = reg

    def restore(self, kind: str, damage: Finding) -> None:
        """Put the object back or mark it. Its finding is noted, and closed if it is put back."""
        object_id = damage.target
        if kind == "landing":
            self._mark_upload(object_id)
            return
        note(self._reg, kind, damage)
        if damage.code == "pack_index":
            return  # the pack's bytes are right, so its rows are wrong: no bytes mend that
        if kind == "pack":
            self._restore_pack(object_id, damage)
        elif kind == "copy":
            self._restore_copy(object_id)
        elif kind == "xorb":
            self._drop_xorb(object_id)

    def unmark(self, pack_id: str) -> None:
        """Take the marks from a pack whose bytes were proved, and from its tensors."""
        with self._reg.db.write() as session:
            restored = session.scalar(
                update(Pack)
                .where(Pack.id == pack_id, Pack.state == "damaged")
                .values(state="live")
                .returning(Pack.id)
                .execution_options(synchronize_session=False)
            )
            self.done.restored_packs += restored is not None
            reached("scrub.unmark.before_tensors")
        self._judge(pack_id, is_missing=False, is_damaged=False, only_lost=True)

    def unmark_upload(self, landing_id: str) -> None:
        """Take the mark from an upload whose bytes were proved, if it has one."""
        try:
            self.done.restored_uploads += restore_upload(self._reg, landing_id)
        except (Unavailable, StoreUnavailable) as exc:
            self.done.notes.append(f"the mark of upload {landing_id} stays for now: {exc}")

    def judge_tensors(self, tensor_ids: list[int]) -> None:
        """Mark those of these tensors that cannot be read, and store them again if possible."""
        judge = TensorJudge(self._reg, self.done, (), ())
        for page in batches(tensor_ids, _PAGE):
            judge.judge(page)
        self._store_again(tensor_ids)

    def files_from_uploads(self) -> None:
        """Read lost files from complete uploads of the same bytes, and ingest them again."""
        with self._reg.db.read() as session:
            uploads = session.scalars(
                select(Landing.id)
                .join(File, File.sha256 == Landing.sha256)
                .where(File.state == "lost", Landing.state == "complete")
                .distinct()
            ).all()
        for upload in uploads:
            with self._reg.db.write() as session:
                row = session.get(Landing, upload, with_for_update=True)
                if row is not None and row.state == "complete":
                    is_of_it = (File.sha256 == row.sha256) & (File.state == "lost")
                    n_lost = select(func.count()).select_from(File).where(is_of_it)
                    self.done.files_from_uploads += session.scalar(n_lost) or 0
                    restore_lost(session, row)

    def _mark_upload(self, landing_id: str) -> None:
        """Mark a damaged upload, unless it was pushed again since it was read."""
        proved = prove(self._reg, "landing", landing_id)
        if proved is not None and proved.damage is not None:
            damage = proved.damage
            is_gone = damage.code != "landing_hash"
            mark_damaged(self._reg, landing_id, damage.text, is_gone=is_gone)

    def _restore_pack(self, pack_id: str, damage: Finding) -> None:
        with self._reg.db.read() as session:
            pack = session.get(Pack, pack_id)
        if pack is None or pack.hash is None:
            return
        if copies.restore_pack(self._reg, pack_id, pack.hash, self.done.notes):
            self.done.packs_from_copies += 1
            with self._reg.db.write() as session:
                copies.note_proved(session, "copy", pack_id, "read")
                copies.note_proved(session, "pack", pack_id, "put back from its second copy")
            self.unmark(pack_id)
            return
        is_missing = damage.code == "pack_missing"
        if is_missing:
            self._check_store(pack_id)
        self._mark(pack_id, is_missing=is_missing)

    def _mark(self, pack_id: str, *, is_missing: bool) -> None:
        with self._reg.db.write() as session:
            is_new = session.scalar(select(Pack.state).where(Pack.id == pack_id)) == "live"
            tensors = mark_packs(session, [pack_id], code=None)
            self.done.damaged_packs += is_new
            if is_missing:
                self.done.lost_tensors += len(tensors) - count_lost(session, tensors)
                mark_tensors(session, tensors)
            reached("scrub.mark.before_commit")
        reached("scrub.mark.after_commit")
        if not is_missing:
            self._judge(pack_id, is_missing=False, is_damaged=True, only_lost=False)
            self.done.salvaged_tensors += salvage(self._reg, pack_id, self.done.notes)
        self._store_again(self._tensors(pack_id, only_lost=True))
        advance_epochs(self._reg)

    def _judge(self, pack_id: str, *, is_missing: bool, is_damaged: bool, only_lost: bool) -> None:
        packs = [pack_id]
        judge = TensorJudge(
            self._reg, self.done, packs if is_missing else (), packs if is_damaged else ()
        )
        for page in batches(self._tensors(pack_id, only_lost=only_lost), _PAGE):
            judge.judge(page)

    def _tensors(self, pack_id: str, *, only_lost: bool) -> list[int]:
        """The tensors with frames in the pack, bases before their deltas."""
        query = (
            select(Tensor.id, Tensor.depth)
            .join(Frame, Frame.tensor_id == Tensor.id)
            .where(Frame.pack_id == pack_id)
            .distinct()
            .order_by(Tensor.depth, Tensor.id)
        )
        if only_lost:
            query = query.where(Tensor.lost.is_not(None))
        with self._reg.db.read() as session:
            return [tensor for tensor, _ in session.execute(query)]

    def _check_store(self, pack_id: str) -> None:
        with self._reg.db.read() as session:
            others = session.scalars(
                select(Pack.id)
                .where(Pack.state == "live", Pack.id != pack_id)
                .order_by(func.random())
                .limit(SAMPLE - 1)
            ).all()
        check_sample(self._reg, [pack_id, *others])

    def _store_again(self, tensor_ids: list[int]) -> None:
        """Store lost ones of these tensors again from rows of other domains with the same bytes."""
        reader = FileReader(self._reg)
        reader.marks_damage = False
        for page in batches(tensor_ids, _PAGE):
            before = self._n_lost(page)
            try:
                store_again(self._reg, reader, self._twins(reader, page))
            except copies.PASSING as exc:
                self.done.notes.append(f"some lost tensors are not stored again now: {exc}")
            self.done.tensors_from_elsewhere += before - self._n_lost(page)

    def _n_lost(self, tensor_ids: list[int]) -> int:
        is_lost = Tensor.id.in_(tensor_ids) & (Tensor.lost == FRAMES)
        with self._reg.db.read() as session:
            return session.scalar(select(func.count()).select_from(Tensor).where(is_lost)) or 0

    def _twins(
        self, reader: FileReader, tensor_ids: list[int]
    ) -> Iterator[tuple[TensorLocation, TensorRef, Read]]:
        with self._reg.db.read() as session:
            lost = session.scalars(
                select(Tensor.id).where(Tensor.id.in_(tensor_ids), Tensor.lost == FRAMES)
            ).all()
            places = locate(session, lost)
            rows = session.execute(
                select(Tensor.hash, Tensor.id).where(
                    Tensor.hash.in_([row.hash for row in places.values()]),
                    Tensor.lost.is_(None),
                )
            )
            twins = {content: twin for content, twin in rows}
        for row in places.values():
            twin = twins.get(row.hash)
            if twin is None:
                continue
            try:
                ref = _shape_of(reader, twin, row)
            except (DataLost, ObjectNotFound):
                continue  # the twin cannot be read either
            yield row, ref, partial(reader.read_tensor_into, twin)

    def _restore_copy(self, pack_id: str) -> None:
        with self._reg.db.read() as session:
            pack = session.get(Pack, pack_id)
        if pack is None or pack.hash is None:
            return
        try:
            self.done.copies += copies.restore_copy(self._reg, pack_id, pack.hash)
        # WrongBytes: the pack is damaged, too, which its own proof finds.
        except (copies.WrongBytes, *copies.PASSING) as exc:
            self.done.notes.append(f"the second copy of pack {pack_id} stays as it is: {exc}")

    def _drop_xorb(self, xorb_id: str) -> None:
        """Forget a damaged xorb, and let its clients forget that they have sent it."""
        with self._reg.db.write() as session:
            row = session.get(Xorb, xorb_id)
            if row is None or row.state != "live":
                return
            condemn(session, xorb_id)
            if row.repository_id is not None:
                advance_epoch(session, row.repository_id)
            findings.close(session, "xorb", [xorb_id], "forgotten, so that clients send it again")
        self.done.dropped_xorbs += 1


def note(reg: Registry, kind: str, damage: Finding) -> None:
    """Note damage of an object with the names of files that need it."""
    with reg.db.read() as session:
        affected = findings.affected_by(session, kind, damage.target)
    with reg.db.write() as session:
        findings.report(session, kind, damage.target, damage.code, damage.text, affected)


def _shape_of(reader: FileReader, tensor_id: int, row: TensorLocation) -> TensorRef:
    """How the frames of another row of the same bytes describe them."""
    located = reader.locate([tensor_id])[tensor_id]
    header = reader.frames.open(located.frame_holding(0)).view.header
    rows, rest = divmod(header.tensor_count, max(header.columns, 1))
    shape = (header.tensor_count,) if rest else (rows, header.columns)
    return TensorRef(row.hash, row.size, header.dtype.name, shape, None)
