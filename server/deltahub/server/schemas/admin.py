"""Reports on the whole hub, for administrators."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from deltahub.server.schemas.base import Out


class AttentionOut(Out):
    level: Literal["danger", "warning", "info"]
    title: str
    advice: str = Field(description="what to do about it")


class CodecSavingOut(Out):
    codec: str
    n_frames: int
    decoded_bytes: int
    stored_bytes: int


class FamilyOut(Out):
    base: str
    n_models: int = Field(description="models that were made from it, without the base")
    logical_bytes: int
    stored_bytes: int


class CoverageOut(Out):
    n_objects: int
    n_bytes: int
    overdue_objects: int = Field(description="not proved for `scrub_days`")
    overdue_bytes: int
    last_checked_at: datetime | None
    scrub_days: float


class OverviewOut(Out):
    """The state of the hub. Null: it is being counted; ask again in some seconds."""

    attention: list[AttentionOut] = Field(description="what to look at, the worst first")
    n_repositories: int | None
    n_users: int | None
    logical_bytes: int | None
    stored_bytes: dict[str, int] | None = Field(description="by kind of object")
    findings: dict[str, int] | None = Field(description="open findings by kind of object")
    disk_free: int | None
    disk_size: int | None
    codecs: list[CodecSavingOut] | None
    families: list[FamilyOut] | None
    coverage: CoverageOut | None


class MomentOut(Out):
    """The hub at a time; jobs_done and all after it since the moment before."""

    at: datetime
    n_repositories: int
    n_files: int
    logical_bytes: int
    stored_bytes: dict[str, int]
    jobs_done: int
    jobs_failed: int
    sent_bytes: int
    received_bytes: int
    requests: int


class HistoryOut(Out):
    items: list[MomentOut]


class PlanLineOut(Out):
    text: str
    n: int
    n_bytes: int | None


class GarbageOut(Out):
    """What `deltahub gc` would do, as planned some minutes ago at most."""

    made_at: datetime
    freed_bytes: int
    later_bytes: int
    waiting_bytes: int
    reasons: dict[str, int] = Field(description="why it is garbage -> bytes")
    lines: list[PlanLineOut]
    doubts: list[str] = Field(description="why it could not be applied")


class ProcessOut(Out):
    command: str
    host: str
    pid: int
    queues: list[str]
    device: str | None
    begun_at: datetime
    looked_at: datetime | None


class ProcessesOut(Out):
    items: list[ProcessOut]


class SettingOut(Out):
    variable: str
    value: str | None
    default: str | None
    about: str
    is_changed: bool
    is_secret: bool = Field(description="its value is not told, only whether it is set")


class TableOut(Out):
    """A page of a table. after: for the next page; null after the last."""

    items: list[dict[str, Any]]
    after: str | None
