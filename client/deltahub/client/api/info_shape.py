"""What the answer to `info` must look like, so that a command can print it."""

from dataclasses import dataclass

from deltahub.client.records import CommitId, Count, Share


@dataclass(frozen=True)
class StoredBytes:
    own: Count = 0
    shared: Count = 0
    base: Count = 0
    size: Count = 0


@dataclass(frozen=True)
class TensorReport:
    size: Count
    name: str | None = None
    dtype: str | None = None
    shape: tuple[Count, ...] | None = None
    codec: str | None = None
    stored: Count | None = None
    base_depth: Count | None = None
    shared: bool | None = None


@dataclass(frozen=True)
class FileReport:
    path: str
    size: Count
    state: str | None = None
    kind: str | None = None
    note: str | None = None
    stored: StoredBytes | None = None
    tensors: tuple[TensorReport, ...] | None = None


@dataclass(frozen=True)
class Measured:
    repository: str | None = None
    commit: str | None = None
    share: Share | None = None
    identical: Share | None = None


@dataclass(frozen=True)
class BaseReport:
    declared: str | None = None
    declared_status: str | None = None
    commit: str | None = None
    measured: tuple[Measured, ...] | None = None
    declared_share: Share | None = None
    pending_job_id: str | None = None
    is_gone: bool = False
    is_own_history: bool = False


@dataclass(frozen=True)
class UsageReport:
    stored_bytes: Count
    logical_bytes: Count


@dataclass(frozen=True)
class Info:
    commit: CommitId
    files: tuple[FileReport, ...]
    totals: StoredBytes | None = None
    base: BaseReport | None = None
    usage: UsageReport | None = None
