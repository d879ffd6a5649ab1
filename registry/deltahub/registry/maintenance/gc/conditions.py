"""SQL conditions of garbage. The plan and the check before each deletion both use them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, aliased

from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    Hold,
    Landing,
    Pack,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.retention import DroppedRevision
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.db.tables.trees import DroppedEntry, Entry

ACTIVE_JOB_STATES = ("queued", "running")
# Longer than any promise.
EVER = timedelta(days=36_500)


@dataclass(frozen=True)
class Moment:
    """The times that a collection compares with.

    now: the present. grace: how long a row is kept without references, because a running step may
    still refer to it (a verified file that is not committed, a tensor of an unfinished file).
    lease: how long a reader may use an object's location after it has looked it up.
    revision_grace: how long a dropped revision can be taken back. is_full: look at all rows, not
    only at the suspects. is_impatient: uploads, xorbs and promises to clients are over, whatever
    they say, and no pack keeps dead bytes.
    """

    now: datetime
    grace: timedelta
    lease: timedelta
    revision_grace: timedelta
    is_full: bool = False
    is_impatient: bool = False

    @property
    def early(self) -> timedelta:
        """How long before their time uploads, xorbs and promises are over."""
        return EVER if self.is_impatient else timedelta(0)

    @property
    def expired(self) -> datetime:
        """Uploads, xorbs and promises that end before it are over."""
        return self.now + self.early

    @property
    def grace_start(self) -> datetime:
        return self.now - self.grace

    @property
    def lease_start(self) -> datetime:
        return self.now - self.lease

    @property
    def dropped_start(self) -> datetime:
        """Revisions that were dropped since then can be taken back."""
        return self.now - self.revision_grace


def file_is_dead(moment: Moment, file: type[File] = File) -> ColumnElement[bool]:
    """SQL condition: no revision lists the file, nor a dropped one that can be taken back, no open
    job works on it, no live hold keeps its recipe (a client was told not to send the file), and it
    is older than the grace.

    file: File, or an alias of it if the outer statement already uses File.
    """
    is_promised = exists(
        select(Hold.id).where(Hold.tensor_id == file.recipe_tensor_id, hold_is_live(moment))
    )
    is_listed = exists(select(Entry.file_id).where(Entry.file_id == file.id))
    is_dropped = exists(
        select(DroppedEntry.file_id)
        .join(DroppedRevision, DroppedRevision.id == DroppedEntry.dropped_id)
        .where(DroppedEntry.file_id == file.id, DroppedRevision.dropped_at >= moment.dropped_start)
    )
    is_worked_on = exists(
        select(Job.id).where(
            Job.state.in_(ACTIVE_JOB_STATES), Job.payload["file_id"].as_integer() == file.id
        )
    )
    last_touched = func.coalesce(file.ingested_at, file.created_at)
    is_named = is_listed | is_dropped | is_worked_on | is_promised
    return ~is_named & (last_touched < moment.grace_start)


def dead_files(moment: Moment) -> Select[int]:
    """A query for the dead files among the suspects, which are all that may be dead."""
    file = aliased(File)
    among = file.id.in_(suspects(moment, Suspect.file_id))
    return select(file.id).where(among, file_is_dead(moment, file))


def suspects(moment: Moment, column: InstrumentedAttribute[Any]) -> Select[Any]:
    """A query for the ids of one kind that may be garbage. column: of Suspect."""
    if moment.is_full:
        every = {"file_id": aliased(File).id, "tensor_id": aliased(Tensor).id}
        return select(every.get(column.key, aliased(Pack).id))
    return select(column).where(column.is_not(None))


def hold_is_live(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the hold has not expired, or its job is still open."""
    is_open = exists(select(Job.id).where(Job.id == Hold.job_id, Job.state.in_(ACTIVE_JOB_STATES)))
    return or_(Hold.expires_at >= moment.expired, is_open)


def tensor_is_unnamed(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: no live file or hold refers to the tensor. Deltas may still need it."""
    is_in_file = exists(
        select(FileTensor.file_id).where(
            FileTensor.tensor_id == Tensor.id, FileTensor.file_id.not_in(dead_files(moment))
        )
    )
    is_recipe = exists(
        select(File.id).where(
            File.recipe_tensor_id == Tensor.id, File.id.not_in(dead_files(moment))
        )
    )
    is_held = exists(select(Hold.id).where(Hold.tensor_id == Tensor.id, hold_is_live(moment)))
    return ~is_in_file & ~is_recipe & ~is_held & (Tensor.created_at < moment.grace_start)


def tensor_is_dead(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: no file, hold or delta refers to the tensor. Its row may be deleted."""
    is_in_file = exists(select(FileTensor.file_id).where(FileTensor.tensor_id == Tensor.id))
    is_recipe = exists(select(File.id).where(File.recipe_tensor_id == Tensor.id))
    is_base = exists(select(TensorBase.tensor_id).where(TensorBase.base_id == Tensor.id))
    return tensor_is_unnamed(moment) & ~is_in_file & ~is_recipe & ~is_base


def landing_is_dead(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the upload has expired, and no live file or open job needs it."""
    is_read = exists(
        select(File.id).where(File.landing_id == Landing.id, File.id.not_in(dead_files(moment)))
    )
    is_worked_on = exists(
        select(Job.id).where(
            Job.state.in_(ACTIVE_JOB_STATES), Job.payload["landing_id"].as_string() == Landing.id
        )
    )
    return (Landing.expires_at < moment.expired) & ~is_read & ~is_worked_on


def pack_is_abandoned(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the pack is still `writing` after the lease, and no running job can finish it.

    Only a job that started before the pack was made can finish the pack. Writers outside of jobs
    take less time than the lease.
    """
    may_finish = exists(
        select(Job.id).where(
            Job.state == "running",
            or_(Job.started_at.is_(None), Job.started_at <= Pack.created_at),
        )
    )
    return (Pack.state == "writing") & (Pack.created_at < moment.lease_start) & ~may_finish


def pack_has_frames() -> ColumnElement[bool]:
    return exists(select(Frame.pack_id).where(Frame.pack_id == Pack.id))


def pack_is_empty(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the pack is live or damaged and older than the lease, but has no frames."""
    is_in_use = Pack.state.in_(("live", "damaged"))
    return is_in_use & (Pack.created_at < moment.lease_start) & ~pack_has_frames()


def pack_is_past_lease(moment: Moment) -> ColumnElement[bool]:
    """SQL condition: the pack was condemned a lease ago, so no reader still reads it."""
    return (
        (Pack.state == "condemned") & (Pack.condemned_at <= moment.lease_start) & ~pack_has_frames()
    )
