"""Runs a scrub: proves objects in turn, and repairs what it finds, within limits.

The time of an object's last check is written when it is over, so a scrub that is killed goes on
where it was: the next one begins with what was not checked for the longest time.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sqlalchemy import delete, exists, or_, select

from deltahub.registry.db.integrity import file_damage
from deltahub.registry.db.models import Frame, Landing, Pack, Tensor, Xorb, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.scrub import PackCopy, Proof
from deltahub.registry.errors import DataLost, StorageFull
from deltahub.registry.losses import findings
from deltahub.registry.losses.findings import text_of
from deltahub.registry.losses.presence import StoreSeemsAway
from deltahub.registry.maintenance.fsck.findings import Finding
from deltahub.registry.maintenance.scrub.due import Due, oldest, sample
from deltahub.registry.maintenance.scrub.pace import Pace, Stopped, paced
from deltahub.registry.maintenance.scrub.prove import Proved, decode, prove
from deltahub.registry.maintenance.scrub.restore import Restored, Restorer, note
from deltahub.registry.registry import Registry
from deltahub.registry.replicas import copies, need
from deltahub.registry.storage.base import ObjectNotFound, ShortObject, StoreFull, StoreUnavailable

log = logging.getLogger(__name__)

PAGE: Final = 100
# After so many objects in a row that the store fails to read, others are asked for.
MOST_FAILURES: Final = 3
# Of so many others the store gives none if it is away.
PROBES: Final = 6
# Findings that an outcome lists; the table has all.
MOST_LISTED: Final = 1000


@dataclass
class Outcome:
    """What a scrub did. is_stopped: somebody asked it to end; is_done: nothing due is left.

    proved_bytes: of objects whose bytes are right. found: (code, text) of damage.
    """

    proved: int = 0
    proved_bytes: int = 0
    found: list[tuple[str, str]] = field(default_factory=list)
    n_found: int = 0
    restored: Restored = field(default_factory=Restored)
    is_stopped: bool = False
    is_done: bool = False


class Scrub:
    """One scrub. repair: also put back or mark what is damaged. decode: also decode every frame of
    the packs. Memory: a few parts of 4 MiB.
    """

    def __init__(
        self,
        reg: Registry,
        pace: Pace,
        *,
        is_repairing: bool = True,
        is_decoding: bool = False,
        progress: Callable[[Due], None] = lambda due: None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """check_stop() is called before each object, and may raise."""
        self.done = Outcome()
        self._pace = pace
        self._reg = paced(reg, pace)
        self._is_repairing = is_repairing
        self._is_decoding = is_decoding
        self._progress = progress
        self._check_stop = check_stop
        self.found: list[tuple[str, Finding]] = []  # (kind, damage), the first MOST_LISTED
        self._is_database_right = False  # as far as was looked
        self._restorer = Restorer(self._reg)
        self.done.restored = self._restorer.done
        # Objects to leave out: read in vain since the last success, or gone since they were listed.
        self._failed: dict[tuple[str, str], None] = {}
        self._row: list[tuple[Due, StoreUnavailable]] = []

    @property
    def n_read(self) -> int:
        """Bytes that were read from the store."""
        return self._pace.n_bytes

    def run(
        self, before: datetime, *, limit_bytes: int | None = None, limit_s: float | None = None
    ) -> Outcome:
        """Prove objects last checked before this time until a limit is reached.

        An object is read to its end, so the limits may be exceeded by one. StoreSeemsAway; DataLost
        if something is damaged and the database is, too: its rows might name the wrong things.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        began = self._pace.n_bytes
        before = min(before, utc_now())  # so that what is checked now is not due again

        def is_at_limit() -> bool:
            if limit_bytes is not None and self._pace.n_bytes - began >= limit_bytes:
                return True
            return end is not None and time.monotonic() >= end

        try:
            self.done.is_done = self._prove_due(before, is_at_limit)
            if self._row:
                self._settle_row()
        except Stopped:
            self.done.is_stopped = True
        return self.done

    def finish(self) -> None:
        """What needs no object: lost files are read from uploads, and old rows deleted."""
        if self._is_repairing:
            self._restorer.files_from_uploads()
        with self._reg.db.write() as session:
            findings.close_gone(session)
            forget_proofs(session)

    def make_copies(self, limit: int | None = None) -> bool:
        """Give packs that many files depend on a second copy, at most `limit`; whether no other
        pack is left to try. A pack that cannot be copied now gets a note, and the next one a try.
        """
        dependents = self._reg.settings.second_copy_dependents
        with self._reg.db.read() as session:
            wanted = need.packs_to_copy(session, dependents)
        n_failed = 0
        for pack_id in wanted:
            if self.done.restored.copies == limit:
                return False
            try:
                self._pace.take(0)
                self._check_stop()
                self._make_copy(pack_id)
            except Stopped:
                self.done.is_stopped = True
                return False
            except copies.PASSING as exc:
                log.warning("pack=%s gets no second copy now: %s", pack_id, exc)
                text = f"pack {pack_id} gets no second copy now: {exc}"
                self.done.restored.notes.append(text)
                n_failed += 1
                if isinstance(exc, StorageFull | StoreFull) or n_failed == MOST_FAILURES:
                    return True
        return True

    def _make_copy(self, pack_id: str) -> None:
        try:
            self.done.restored.copies += copies.make_copy(self._reg, pack_id)
        except copies.WrongBytes as exc:
            log.error("pack %s gets no second copy: %s", pack_id, exc)
            proved = prove(self._reg, "pack", pack_id)
            if proved is not None and proved.damage is not None:
                self._found("pack", proved.damage)

    def _prove_due(self, before: datetime, is_at_limit: Callable[[], bool]) -> bool:
        """Prove what is due; False if that ended at the limit."""
        while True:
            with self._reg.db.read() as session:
                page = oldest(session, before, PAGE, self._failed)
            if not page:
                return True
            for due in page:
                if is_at_limit():
                    return False
                self._pace.take(0)
                self._check_stop()
                self._check(due)

    def _check(self, due: Due) -> None:
        self._progress(due)
        try:
            proved = prove(self._reg, due.kind, due.id)
        except StoreUnavailable as exc:
            self._fail(due, exc)
            return
        self._end_row()
        if proved is None:  # deleted or replaced since the list was made
            self._failed[due.kind, due.id] = None
            return
        if proved.damage is not None:
            self._found(due.kind, proved.damage)
            self._note_checked(due)  # only now: a scrub that is killed before finds it again
            return
        self._note_right(due, proved)

    def _note_right(self, due: Due, proved: Proved) -> None:
        with self._reg.db.write() as session:
            copies.note_proved(session, due.kind, due.id, "its bytes are right again")
            is_marked = due.kind == "pack" and _has_marks(session, due.id)
        self.done.proved += 1
        self.done.proved_bytes += due.size
        if is_marked and self._is_repairing:
            self._restorer.unmark(due.id)
        if due.kind == "landing" and self._is_repairing:
            self._restorer.unmark_upload(due.id)
        if due.kind == "pack" and self._is_decoding:
            wrong = list(decode(self._reg, due.id))
            for _, damage in wrong:
                note(self._reg, "tensor", damage)
                self._list("tensor", damage)
            if wrong and self._is_repairing:
                self._restorer.judge_tensors(list(dict.fromkeys(tensor for tensor, _ in wrong)))

    def _found(self, kind: str, damage: Finding) -> None:
        log.error("%s: %s", damage.code, damage.text)
        self._list(kind, damage)
        if self._is_repairing:
            if not self._is_database_right:
                for fault in file_damage(self._reg.db, most=1):
                    raise DataLost(f"the database is damaged; restore it first: {fault}")
                self._is_database_right = True
            self._restorer.restore(kind, damage)
        else:
            note(self._reg, kind, damage)

    def _list(self, kind: str, damage: Finding) -> None:
        self.done.n_found += 1
        if len(self.done.found) < MOST_LISTED:
            self.done.found.append((damage.code, damage.text))
            self.found.append((kind, damage))

    def _fail(self, due: Due, exc: StoreUnavailable) -> None:
        """Go on with other objects. If they fail, too, it may be the store."""
        log.warning("%s=%s cannot be read: %s", due.kind, due.id, exc)
        self._failed[due.kind, due.id] = None
        self._row.append((due, exc))
        if len(self._row) >= MOST_FAILURES:
            self._settle_row()

    def _settle_row(self) -> None:
        """StoreSeemsAway if the store gives nothing of other objects, either."""
        if not self._gives_others():
            exc = self._row[-1][1]
            raise StoreSeemsAway(f"the store does not answer: {exc}") from exc
        self._end_row()

    def _gives_others(self) -> bool:
        """Whether the store gives a byte of any of some objects that it has not failed to read."""
        with self._reg.db.read() as session:
            keys = sample(session, PROBES, self._failed)
        for key in keys:
            try:
                self._reg.store.get_into(key, 0, memoryview(bytearray(1)))
            except (StoreUnavailable, ObjectNotFound, ShortObject):
                continue
            return True
        return False

    def _end_row(self) -> None:
        """The store has answered again: what it failed to read is damage of its disk."""
        for due, exc in self._row:
            damage = Finding("object_unreadable", due.id, text_of(due.kind, due.id, exc))
            note(self._reg, due.kind, damage)
            self._list(due.kind, damage)
            self._note_checked(due)  # so it is not due any more
            self._failed.pop((due.kind, due.id), None)
        self._row.clear()

    def _note_checked(self, due: Due) -> None:
        with self._reg.db.write() as session:
            proof = session.get(Proof, (due.kind, due.id))
            if proof is None:
                proof = Proof(kind=due.kind, object_id=due.id)
                session.add(proof)
            proof.checked_at = utc_now()


def forget_proofs(session: WriteSession) -> None:
    """Delete the proofs of objects that have no row any more."""
    for kind, known in (
        ("pack", select(Pack.id)),
        ("copy", select(PackCopy.pack_id)),
        ("landing", select(Landing.id)),
        ("xorb", select(Xorb.id)),
    ):
        session.execute(
            delete(Proof)
            .where(Proof.kind == kind, Proof.object_id.not_in(known))
            .execution_options(synchronize_session=False)
        )


def _has_marks(session: WriteSession, pack_id: str) -> bool:
    """Whether the pack is marked as damaged, or a tensor in it as lost, perhaps by a reader."""
    is_damaged = exists().where(Pack.id == pack_id, Pack.state == "damaged")
    has_lost = exists().where(
        Frame.pack_id == pack_id, Tensor.id == Frame.tensor_id, Tensor.lost.is_not(None)
    )
    return bool(session.scalar(select(or_(is_damaged, has_lost))))
