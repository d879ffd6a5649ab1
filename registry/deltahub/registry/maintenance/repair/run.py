"""Marks what is lost, and takes the marks from what can be read again.

It deletes nothing. A mark says that the bytes have to be pushed again; rows and objects stay, and
readers still try them. Every step may be repeated, and interrupted at any line. It may run beside a
working hub: each transaction checks again what was seen before it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from sqlalchemy import exists, or_, select, update

from deltahub.codecs.errors import CodecError
from deltahub.codecs.frames.pack import verify_pack_hash
from deltahub.registry.db.batches import batches
from deltahub.registry.db.integrity import file_damage
from deltahub.registry.db.models import (
    Frame,
    Landing,
    Pack,
    Tensor,
)
from deltahub.registry.errors import DataLost, Unavailable
from deltahub.registry.failpoints import reached
from deltahub.registry.losses import findings
from deltahub.registry.losses.marks import (
    mark_packs,
    mark_tensors,
)
from deltahub.registry.losses.presence import check_store_is_there, is_missing
from deltahub.registry.maintenance.repair.judge import (
    Repaired,
    TensorJudge,
    advance_epochs,
    count_lost,
)
from deltahub.registry.maintenance.repair.salvage import salvage
from deltahub.registry.maintenance.repair.uploads import restore_upload
from deltahub.registry.packs.copy import pack_chunks
from deltahub.registry.registry import Registry
from deltahub.registry.replicas.copies import restore_pack
from deltahub.registry.storage.base import (
    ObjectNotFound,
    ShortObject,
    StoreError,
    StoreUnavailable,
)
from deltahub.registry.storage.keys import pack_key

# Tensors that are judged between two transactions.
PAGE = 200


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
    progress("damaged packs, for what can be read")
    work.salvage()
    progress("uploads, for damage")
    work.restore_uploads()
    advance_epochs(reg)
    return work.done


class _Repair:
    """One run."""

    def __init__(self, reg: Registry, read_data: bool) -> None:
        self.done = Repaired()
        self._reg = reg
        self._read_data = read_data
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
        self._missing -= self._put_back(pack for pack in packs if pack.id in self._missing)
        self._mark_missing(self._missing)
        changed = {pack.id for pack in packs if self._is_suspect(pack) and not self._is_whole(pack)}
        changed -= self._put_back(pack for pack in packs if pack.id in changed)
        for batch in batches(sorted(changed)):
            with self._reg.db.write() as session:
                mark_packs(session, batch, "pack_hash")
        self._damaged = self._missing | changed
        self.done.damaged_packs = len(self._damaged & live)
        for pack in packs:
            if pack.state == "damaged" and pack.id not in self._damaged:
                self._restore_pack(pack.id)

    def salvage(self) -> None:
        """Move what can still be read out of the damaged packs, so that gc can delete them."""
        for pack_id in sorted(self._damaged - self._missing):
            self.done.salvaged_tensors += salvage(self._reg, pack_id, self.done.notes)

    def restore_uploads(self) -> None:
        """Unmark the damaged uploads that are whole again: an operator has brought them back."""
        with self._reg.db.read() as session:
            damaged = session.execute(
                select(Landing.id, Landing.sha256).where(Landing.state == "damaged")
            ).all()
        for landing_id, sha256 in damaged:
            try:
                self.done.restored_uploads += restore_upload(self._reg, landing_id)
            except (Unavailable, StoreUnavailable) as exc:
                self.done.notes.append(f"the upload {sha256} stays as it is: {exc}")

    def _put_back(self, damaged: Iterable[Pack]) -> set[str]:
        """Put damaged packs back from their second copies; returns those that are right again."""
        done = {
            pack.id
            for pack in damaged
            if pack.hash is not None
            and restore_pack(self._reg, pack.id, pack.hash, self.done.notes)
        }
        self.done.packs_from_copies += len(done)
        with self._reg.db.write() as session:
            findings.close(session, "pack", done, "put back from its second copy")
        return done

    def _mark_missing(self, packs: Collection[str]) -> None:
        for batch in batches(sorted(packs)):
            with self._reg.db.write() as session:
                tensors = mark_packs(session, batch, "pack_missing")
                self.done.lost_tensors += len(tensors) - count_lost(session, tensors)
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
            findings.close(session, "pack", [pack_id], "its bytes are right again")
        self.done.restored_packs += 1

    def mark_tensors(self) -> None:
        """Read suspect tensors, bases before their deltas, and mark or unmark them."""
        with self._reg.db.read() as session:
            depths = session.scalars(select(Tensor.depth).distinct().order_by(Tensor.depth)).all()
        judge = TensorJudge(self._reg, self.done, self._missing, self._damaged)
        for depth in depths:
            for tensors in self._pages(depth):
                judge.judge(tensors)

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
