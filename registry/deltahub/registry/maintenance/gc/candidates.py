"""Garbage to delete now, and garbage that waits for the end of its grace, expiry or lease.

Each condition runs once, for a moment in the far future. It returns everything that becomes garbage
if nothing refers to it meanwhile. The due time of each row decides if it may be deleted now.
Files, tensors and packs are looked for among the suspects (db/tables/suspects.py) alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, func, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from deltahub.registry.db.batches import batches
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    Hold,
    Landing,
    Pack,
    Tensor,
    TensorBase,
    Xorb,
)
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.db.tables.trees import DroppedEntry
from deltahub.registry.maintenance.gc.conditions import (
    EVER,
    Moment,
    dead_files,
    file_is_dead,
    landing_is_dead,
    suspects,
    tensor_is_unnamed,
)
from deltahub.registry.maintenance.gc.xet import xorb_is_dead

_Id = TypeVar("_Id", int, str)
_NEVER_COMMITTED = "never committed"
_REPLACED = "replaced"


@dataclass(frozen=True)
class Waiting:
    """Garbage of one kind that later collections delete, unless something refers to it by then.

    size_bytes: stored bytes. until: the latest due time, ISO 8601.
    """

    what: str
    count: int
    size_bytes: int
    until: str


class Candidates:
    """Garbage at one moment. Each method returns (id, bytes) of the garbage to delete now, and adds
    the rest to `waiting`. Memory: proportional to the garbage, not to the hub.

    Call files() first, because uploads and tensors wait for the files that need them.
    """

    def __init__(self, session: Session, moment: Moment) -> None:
        self._session = session
        self._moment = moment
        self._far_moment = replace(moment, now=moment.now + EVER)
        self.waiting: list[Waiting] = []
        # Due times of waiting files, and for each upload the latest due time of its files.
        self._file_due: dict[int, datetime] = {}
        self._upload_due: dict[str | None, datetime] = {}

    def sort(
        self, what: str, found: Iterable[tuple[_Id, int, datetime]], until: Iterable[datetime] = ()
    ) -> list[tuple[_Id, int]]:
        """(id, bytes) of the garbage that is due; adds the rest to `waiting`.

        found: (id, bytes, due time). until: lower bounds of the end of waiting that is shown.
        """
        now: list[tuple[_Id, int]] = []
        later: list[tuple[int, datetime]] = []
        for key, size, due in found:
            if due <= self._moment.now:
                now.append((key, size))
            else:
                later.append((size, due))
        if later:
            last = max([*until, *(due for _, due in later)]).isoformat(timespec="seconds")
            self.waiting.append(Waiting(what, len(later), sum(size for size, _ in later), last))
        return now

    def revisions(self) -> list[tuple[int, int]]:
        """Dropped revisions, with 0 bytes each."""
        query = select(DroppedRevision.id, DroppedRevision.dropped_at).order_by(DroppedRevision.id)
        rows = self._session.execute(query)
        grace = self._moment.revision_grace
        return self.sort(
            "dropped revisions that can be taken back", ((row, 0, at + grace) for row, at in rows)
        )

    def files(self) -> list[tuple[int, int]]:
        """Files in no revision, with 0 bytes each: uploads and tensors hold their content."""
        touched_at = func.coalesce(File.ingested_at, File.created_at)
        query = select(
            File.id, touched_at, _held_until(File.recipe_tensor_id), _dropped_at(), File.landing_id
        )
        among = suspects(self._moment, Suspect.file_id)
        found: list[tuple[int, int, datetime]] = []
        for file, since, held_until, dropped_at, upload in self._session.execute(
            query.where(File.id.in_(among), file_is_dead(self._far_moment))
        ):
            due = self._due(since, held_until)
            if dropped_at is not None:
                due = max(due, dropped_at + self._moment.revision_grace)
            found.append((file, 0, due))
            if due > self._moment.now:
                self._file_due[file] = due
                self._upload_due[upload] = max(due, self._upload_due.get(upload, due))
        return self.sort("files that no revision lists", found)

    def uploads(self, size_of: Callable[[str], int]) -> list[tuple[str, int]]:
        rows = self._session.execute(
            select(Landing.id, Landing.expires_at).where(landing_is_dead(self._far_moment))
        )
        found = []
        for upload, expires_at in rows:
            due = expires_at - self._moment.early
            found.append((upload, size_of(upload), max(due, self._upload_due.get(upload, due))))
        return self.sort("uploads that no revision needs", found, self._file_due.values())

    def xorbs(self) -> list[tuple[str, int]]:
        # A xorb whose repository is deleted does not wait for its expiry.
        query = select(Xorb.id, Xorb.size, Xorb.expires_at, Xorb.repository_id.is_(None))
        found = [
            (xorb, size, self._moment.now if is_orphan else expires_at - self._moment.early)
            for xorb, size, expires_at, is_orphan in self._session.execute(
                query.where(xorb_is_dead(self._far_moment))
            )
        ]
        return self.sort("xorbs of uploads", found)

    def tensors(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(dead, anchors): unneeded tensors, dependents before bases; and tensors in no file that
        deltas still need. Bytes are those of their frames.
        """
        frame_bytes = select(total(Frame.length)).where(Frame.tensor_id == Tensor.id)
        query = select(
            Tensor.id, Tensor.created_at, _held_until(Tensor.id), frame_bytes.scalar_subquery()
        )
        dead = dead_files(self._far_moment)
        may_be_dead = union(
            suspects(self._moment, Suspect.tensor_id),
            select(FileTensor.tensor_id).where(FileTensor.file_id.in_(dead)),
            select(File.recipe_tensor_id).where(
                File.id.in_(dead), File.recipe_tensor_id.is_not(None)
            ),
        )
        query = query.where(Tensor.id.in_(may_be_dead), tensor_is_unnamed(self._far_moment))
        sizes: dict[int, int] = {}
        dues: dict[int, datetime] = {}
        for tensor, created_at, held_until, size in self._session.execute(
            query.order_by(Tensor.id)
        ):
            sizes[tensor], dues[tensor] = size, self._due(created_at, held_until)
        self._wait_for_files(dues)
        unnamed = [tensor for tensor, due in dues.items() if due <= self._moment.now]
        found = [(tensor, sizes[tensor], dues[tensor]) for tensor in self._unneeded(dues)]
        due = self.sort("tensors that nothing needs", found, self._file_due.values())
        anchors = set(unnamed).difference(tensor for tensor, _ in due)
        return due, [(tensor, sizes[tensor]) for tensor in anchors]

    def reasons(
        self,
        files: Iterable[tuple[int, int]],
        uploads: Iterable[tuple[str, int]],
        tensors: Iterable[tuple[int, int]],
    ) -> dict[str, int]:
        """Why garbage is garbage -> its bytes, of what the methods of these names found.

        A tensor goes for the reason of a file that needed it; the reason of another tensor, and of
        an upload without a file, is that no commit named it, or that a smaller form replaced it.
        """
        of_tensor: dict[int, str] = {}
        of_upload: dict[str, str] = {}
        for batch in batches(file for file, _ in files):
            why = func.coalesce(File.left_by, _NEVER_COMMITTED)
            named = select(FileTensor.tensor_id, why).join(File, File.id == FileTensor.file_id)
            of_tensor.update(self._session.execute(named.where(File.id.in_(batch))).all())
            landed = select(File.landing_id, why).where(
                File.id.in_(batch), File.landing_id.is_not(None)
            )
            rows = self._session.execute(landed)
            of_upload.update((upload, left_by) for upload, left_by in rows if upload is not None)
        found: dict[str, int] = {}
        for tensor, size in tensors:
            why_not = of_tensor.get(tensor, _REPLACED)
            found[why_not] = found.get(why_not, 0) + size
        for upload, size in uploads:
            why_not = of_upload.get(upload, _NEVER_COMMITTED)
            found[why_not] = found.get(why_not, 0) + size
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def packs(
        self,
        what: str,
        condition: Callable[[Moment], ColumnElement[bool]],
        since: InstrumentedAttribute[Any],
    ) -> list[tuple[str, int]]:
        """Packs to delete after the lease. since: the column with the start of the lease."""
        query = (
            select(Pack.id, Pack.size, since).where(condition(self._far_moment)).order_by(Pack.id)
        )
        rows = self._session.execute(query)
        return self.sort(what, ((pack, size, at + self._moment.lease) for pack, size, at in rows))

    def _due(self, since: datetime, held_until: datetime | None) -> datetime:
        promised = since if held_until is None else held_until - self._moment.early
        return max(since + self._moment.grace, promised)

    def _wait_for_files(self, dues: dict[int, datetime]) -> None:
        """Raise the due time of each tensor to the latest due time of the files that need it."""
        for batch in batches(self._file_due):
            rows = select(FileTensor.tensor_id, FileTensor.file_id).where(
                FileTensor.file_id.in_(batch)
            )
            for tensor, file in self._session.execute(rows):
                if tensor in dues:
                    dues[tensor] = max(dues[tensor], self._file_due[file])

    def _unneeded(self, dues: dict[int, datetime]) -> list[int]:
        """The tensors that no tensor outside of `dues` needs, dependents before bases.

        Sets the due time of a base to the latest due time of its dependents, if that is later.
        """
        dependents: dict[int, set[int]] = {tensor: set() for tensor in dues}
        for batch in batches(dependents):
            edges = select(TensorBase.base_id, TensorBase.tensor_id).where(
                TensorBase.base_id.in_(batch)
            )
            for base, tensor in self._session.execute(edges):
                dependents[base].add(tensor)
        bases: dict[int, list[int]] = {}
        for base, needing in dependents.items():
            for tensor in needing:
                bases.setdefault(tensor, []).append(base)
        # A tensor is unneeded once all of its dependents are.
        unneeded: list[int] = []
        ready = [tensor for tensor, needing in dependents.items() if not needing]
        while ready:
            tensor = ready.pop()
            unneeded.append(tensor)
            for base in bases.get(tensor, ()):
                dues[base] = max(dues[base], dues[tensor])
                dependents[base].discard(tensor)
                if not dependents[base]:
                    ready.append(base)
        return unneeded


def _dropped_at() -> ColumnElement[datetime]:
    """When the last revision that listed the file was dropped; NULL if none was."""
    return (
        select(func.max(DroppedRevision.dropped_at))
        .join(DroppedEntry, DroppedEntry.dropped_id == DroppedRevision.id)
        .where(DroppedEntry.file_id == File.id)
        .scalar_subquery()
    )


def _held_until(tensor: InstrumentedAttribute[Any]) -> ColumnElement[datetime]:
    """The end of the last hold on a tensor; NULL without one."""
    return select(func.max(Hold.expires_at)).where(Hold.tensor_id == tensor).scalar_subquery()
