"""What nothing needs any more, as SQL: a plan and the re-check before acting use the same text."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.orm import aliased

from deltahub.registry.db.models import (
    Entry,
    File,
    FileTensor,
    Frame,
    Hold,
    Job,
    Landing,
    Pack,
    Tensor,
    TensorBase,
)

ACTIVE_JOB_STATES = ("queued", "running")


@dataclass(frozen=True)
class Moment:
    """The clock that one collection goes by.

    now: when it looks. grace: how long a row may stay without references, because the step that
    will refer to it is still under way (a file proved but not committed, a tensor whose file is
    not finished). lease: how long a reader may go on reading an object that it has resolved.
    """

    now: datetime
    grace: timedelta
    lease: timedelta

    @property
    def grace_start(self) -> datetime:
        return self.now - self.grace

    @property
    def lease_start(self) -> datetime:
        return self.now - self.lease


def file_is_dead(moment: Moment, file: type[File] = File) -> ColumnElement[bool]:
    """True for a file that nobody needs: no revision lists it, no open job works on it, nobody was
    told that it need not be sent (a live hold on its recipe), and it is older than the grace.

    file: the class or an alias of it, where the statement around names files already.
    """
    is_promised = exists(
        select(Hold.id).where(Hold.tensor_id == file.recipe_tensor_id, hold_is_live(moment))
    )
    is_listed = exists(select(Entry.file_id).where(Entry.file_id == file.id))
    is_worked_on = exists(
        select(Job.id).where(
            Job.state.in_(ACTIVE_JOB_STATES), Job.payload["file_id"].as_integer() == file.id
        )
    )
    last_touched = func.coalesce(file.ingested_at, file.created_at)
    return ~is_listed & ~is_worked_on & ~is_promised & (last_touched < moment.grace_start)


def dead_files(moment: Moment) -> Select[int]:
    file = aliased(File)
    return select(file.id).where(file_is_dead(moment, file))


def hold_is_live(moment: Moment) -> ColumnElement[bool]:
    """True for a hold that has not expired, or whose job is still open, however late."""
    is_open = exists(select(Job.id).where(Job.id == Hold.job_id, Job.state.in_(ACTIVE_JOB_STATES)))
    return or_(Hold.expires_at >= moment.now, is_open)


def tensor_is_unnamed(moment: Moment) -> ColumnElement[bool]:
    """True for a tensor that no live file and no live hold names; deltas may still need it."""
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
    """True for a tensor without name, hold or dependent: its row may go in this transaction."""
    is_in_file = exists(select(FileTensor.file_id).where(FileTensor.tensor_id == Tensor.id))
    is_recipe = exists(select(File.id).where(File.recipe_tensor_id == Tensor.id))
    is_base = exists(select(TensorBase.tensor_id).where(TensorBase.base_id == Tensor.id))
    return tensor_is_unnamed(moment) & ~is_in_file & ~is_recipe & ~is_base


def landing_is_dead(moment: Moment) -> ColumnElement[bool]:
    """True for an expired upload that no live file is read from and no open job works on."""
    is_read = exists(
        select(File.id).where(File.landing_id == Landing.id, File.id.not_in(dead_files(moment)))
    )
    is_worked_on = exists(
        select(Job.id).where(
            Job.state.in_(ACTIVE_JOB_STATES), Job.payload["landing_id"].as_string() == Landing.id
        )
    )
    return (Landing.expires_at < moment.now) & ~is_read & ~is_worked_on


def pack_is_abandoned(moment: Moment) -> ColumnElement[bool]:
    """True for a pack still `writing` after the lease, begun before every job that still runs.

    A job writes its packs after it was started, so a running job that started before the pack
    was made may yet finish it; no other writer takes longer than the lease.
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
    """True for a live pack that no tensor's frames lie in."""
    return (Pack.state == "live") & (Pack.created_at < moment.lease_start) & ~pack_has_frames()


def pack_is_past_lease(moment: Moment) -> ColumnElement[bool]:
    """True for a condemned pack that no reader can still be reading."""
    return (
        (Pack.state == "condemned") & (Pack.condemned_at <= moment.lease_start) & ~pack_has_frames()
    )
