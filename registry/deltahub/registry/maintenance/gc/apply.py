"""Applies a plan of garbage collection. Each step checks its conditions in its transaction."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from sqlalchemy import delete, exists, select, update

from deltahub.registry.catalog.trees.nodes import free
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    Hold,
    Landing,
    Pack,
    Sketch,
    Tensor,
    TensorBase,
    utc_now,
)
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.errors import Conflict
from deltahub.registry.failpoints import reached
from deltahub.registry.maintenance.deletions import carry_out_deferred
from deltahub.registry.maintenance.gc.conditions import (
    Moment,
    file_is_dead,
    hold_is_live,
    landing_is_dead,
    pack_is_abandoned,
    pack_is_empty,
    pack_is_past_lease,
    tensor_is_dead,
)
from deltahub.registry.maintenance.gc.leftovers import is_spooled
from deltahub.registry.maintenance.gc.plan import Item, Plan, UnfinishedPut, moment_now
from deltahub.registry.maintenance.gc.settle import settle
from deltahub.registry.maintenance.gc.xet import remove_ranges, remove_xorb
from deltahub.registry.maintenance.object_rows import is_known
from deltahub.registry.packs.copy import repack
from deltahub.registry.registry import Registry
from deltahub.registry.replicas.copies import drop_copy, is_in_use, is_right
from deltahub.registry.replicas.need import still_needed
from deltahub.registry.spools.base import Claim
from deltahub.registry.storage.base import Unfinished
from deltahub.registry.storage.keys import landing_key, pack_key


@dataclass
class Outcome:
    """What a collection did. It skips planned items that changed or are needed by now."""

    revisions: int = 0
    uploads: int = 0
    xorbs: int = 0
    files: int = 0
    tensors: int = 0
    condemned: int = 0
    repacked: int = 0
    deleted: int = 0
    deferred: int = 0
    copies: int = 0
    unknown: int = 0
    unfinished: int = 0
    tails: int = 0
    freed_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def apply_gc(reg: Registry, plan: Plan, *, delete_unknown: bool = False) -> Outcome:
    """Apply a plan; Conflict if it has doubts. Safe to run twice, or to be killed at any point.

    delete_unknown: also delete the objects without a row.
    """
    if plan.doubts:
        raise Conflict("gc touches nothing while in doubt: " + "; ".join(plan.doubts))
    outcome = Outcome()
    collector = _Collector(reg, plan, outcome)
    collector.remove_revisions(plan.revisions)
    collector.remove_files(plan.files)
    collector.remove_uploads(plan.uploads)
    collector.remove_xorbs(plan.xorbs)
    remove_ranges(reg, plan.xet_ranges)
    collector.remove_tensors(plan.tensors)
    collector.condemn(plan)
    repacked = repack(reg, [item.id for item in plan.repack])
    outcome.repacked = repacked.condemned
    outcome.notes += repacked.notes
    collector.drop_copies(plan.copies)
    collector.delete_packs(plan.delete)
    collector.remove_leftovers(plan.leftovers)
    collector.end_unfinished(plan.unfinished)
    collector.delete_tails(plan.tails)
    if delete_unknown:
        collector.delete_unknown(plan.unknown)
    outcome.deferred = carry_out_deferred(reg)
    settle(reg)
    held_until = reg.store.held_until()
    if held_until is not None:
        outcome.notes.append(
            f"a backup is at work: {reg.store.n_deferred()} objects are deleted after it"
        )
    return outcome


class _Collector:
    """One application of a plan."""

    def __init__(self, reg: Registry, plan: Plan, outcome: Outcome) -> None:
        self._reg = reg
        self._plan = plan
        self._outcome = outcome

    @property
    def _moment(self) -> Moment:
        plan = self._plan
        return moment_now(
            plan.lease_s, plan.grace_s, plan.revision_grace_s, is_impatient=plan.is_impatient
        )

    def remove_revisions(self, revisions: Sequence[int]) -> None:
        """Delete dropped revisions, except those that were taken back meanwhile."""
        for batch in batches(revisions):
            due = DroppedRevision.dropped_at < self._moment.dropped_start
            with self._reg.db.write() as session:
                gone = session.scalars(
                    delete(DroppedRevision)
                    .where(DroppedRevision.id.in_(batch), due)
                    .returning(DroppedRevision.tree_id)
                    .execution_options(synchronize_session=False)
                ).all()
                free(session, (tree_id for tree_id in gone if tree_id is not None))
                self._outcome.revisions += len(gone)

    def remove_files(self, files: Sequence[int]) -> None:
        for batch in batches(files):
            with self._reg.db.write() as session:
                dead = list(
                    session.scalars(
                        select(File.id)
                        .where(File.id.in_(batch), file_is_dead(self._moment))
                        .with_for_update()
                    )
                )
                session.execute(delete(FileTensor).where(FileTensor.file_id.in_(dead)))
                session.execute(delete(File).where(File.id.in_(dead)))
            self._outcome.files += len(dead)

    def remove_uploads(self, uploads: Sequence[Item]) -> None:
        for item in uploads:
            with self._reg.spool.locked(item.id) as claim:
                if claim is not None:
                    self._remove_upload(item, claim)

    def _remove_upload(self, item: Item, claim: Claim) -> None:
        """Condemn the upload, delete its bytes, delete its row."""
        is_read = exists(select(File.id).where(File.landing_id == Landing.id))
        with self._reg.db.write() as session:
            # Frees the unique key (user, sha256), so that the user can upload the bytes again.
            condemned = session.scalar(
                update(Landing)
                .where(Landing.id == item.id, landing_is_dead(self._moment), ~is_read)
                .values(state="condemned", sha256=f"condemned-{item.id}")
                .returning(Landing.id)
                .execution_options(synchronize_session=False)
            )
        if condemned is None:
            return
        reached("gc.upload.after_condemn")
        claim.discard()
        self._reg.store.delete(landing_key(item.id))
        reached("gc.upload.after_delete")
        with self._reg.db.write() as session:
            session.execute(delete(Landing).where(Landing.id == item.id))
        self._outcome.uploads += 1
        self._outcome.freed_bytes += item.size_bytes

    def remove_xorbs(self, xorbs: Sequence[Item]) -> None:
        for item in xorbs:
            if remove_xorb(self._reg, item.id, self._moment):
                self._outcome.xorbs += 1
                self._outcome.freed_bytes += item.size_bytes

    def remove_tensors(self, tensors: Sequence[int]) -> None:
        with self._reg.db.write() as session:
            session.execute(
                delete(Hold)
                .where(~hold_is_live(self._moment))
                .execution_options(synchronize_session=False)
            )
        for batch in batches(tensors):
            with self._reg.db.write() as session:
                while dead := list(
                    session.scalars(
                        select(Tensor.id)
                        .where(Tensor.id.in_(batch), tensor_is_dead(self._moment))
                        .with_for_update()
                    )
                ):
                    for table in (Frame, TensorBase, Sketch, Hold):
                        session.execute(delete(table).where(table.tensor_id.in_(dead)))
                    session.execute(delete(Tensor).where(Tensor.id.in_(dead)))
                    self._outcome.tensors += len(dead)
                reached("gc.tensors.before_commit")
            reached("gc.tensors.after_commit")

    def condemn(self, plan: Plan) -> None:
        steps = ((plan.abandoned, pack_is_abandoned), (plan.condemn, pack_is_empty))
        for items, condition in steps:
            for batch in batches(item.id for item in items):
                with self._reg.db.write() as session:
                    condemned = session.scalars(
                        update(Pack)
                        .where(Pack.id.in_(batch), condition(self._moment))
                        .values(state="condemned", condemned_at=utc_now())
                        .returning(Pack.id)
                        .execution_options(synchronize_session=False)
                    )
                    self._outcome.condemned += len(condemned.all())
                reached("gc.condemn.after_commit")

    def drop_copies(self, copies: Sequence[Item]) -> None:
        """Delete second copies, except those that are needed by now, or whose pack is damaged."""
        for item in copies:
            with self._reg.db.read() as session:
                pack = session.get(Pack, item.id)
                is_used = is_in_use(session, item.id)
                dependents = self._reg.settings.second_copy_dependents
                is_needed = is_used and still_needed(session, item.id, dependents)
            if is_needed or pack is None:
                continue
            if is_used and not (pack.hash and is_right(self._reg, pack_key(item.id), pack.hash)):
                self._outcome.notes.append(
                    f"pack {item.id} does not check, so its second copy stays: run deltahub scrub"
                )
                continue
            drop_copy(self._reg, item.id)
            self._outcome.copies += 1
            self._outcome.freed_bytes += item.size_bytes

    def delete_packs(self, packs: Sequence[Item]) -> None:
        """Delete the object, then its condemned row: the next run finds a row left by a crash."""
        for item in packs:
            condition = (Pack.id == item.id) & pack_is_past_lease(self._moment)
            with self._reg.db.read() as session:
                if session.scalar(select(Pack.id).where(condition)) is None:
                    continue
            drop_copy(self._reg, item.id)
            self._reg.store.delete(pack_key(item.id))
            reached("gc.pack.after_delete")
            with self._reg.db.write() as session:
                session.execute(delete(Pack).where(condition))
            self._outcome.deleted += 1
            self._outcome.freed_bytes += item.size_bytes

    def remove_leftovers(self, leftovers: Sequence[Item]) -> None:
        for item in leftovers:
            path = self._reg.data_dir / item.id
            if path.is_dir():  # of a job whose worker died
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            self._outcome.freed_bytes += item.size_bytes

    def end_unfinished(self, puts: Sequence[UnfinishedPut]) -> None:
        for put in puts:
            with self._reg.db.read() as session:
                if is_spooled(session, put.id):
                    continue
            modified_at = datetime.fromisoformat(put.modified_at)
            unfinished = Unfinished(put.id, put.key, put.size_bytes, modified_at)
            if self._reg.store.discard_unfinished(unfinished):
                self._outcome.unfinished += 1
                self._outcome.freed_bytes += put.size_bytes

    def delete_tails(self, tails: Sequence[Item]) -> None:
        self._outcome.tails += self._delete_without_rows(tails)

    def delete_unknown(self, objects: Sequence[Item]) -> None:
        self._outcome.unknown += self._delete_without_rows(objects)

    def _delete_without_rows(self, objects: Sequence[Item]) -> int:
        n_deleted = 0
        for item in objects:
            with self._reg.db.read() as session:
                if is_known(session, item.id):
                    continue
            self._reg.store.delete(item.id)
            n_deleted += 1
            self._outcome.freed_bytes += item.size_bytes
        return n_deleted
