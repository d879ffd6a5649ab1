"""How a revision is stored."""

from pydantic import Field

from deltahub.server.schemas.base import Out


class StoredOut(Out):
    """Encoded bytes: only here, shared with other repositories, and of bases outside."""

    own: int
    shared: int
    base: int


class TotalsOut(StoredOut):
    size: int = Field(description="bytes of all files as they come back")


class TensorReportOut(Out):
    name: str | None = Field(description="null for a chunk of bytes that are no tensor")
    dtype: str
    shape: list[int]
    size: int
    codec: str
    stored: int
    base_depth: int = Field(description="deltas that are decoded one upon the other")
    shared: bool


class FileReportOut(Out):
    path: str
    size: int
    sha256: str
    state: str
    kind: str | None = Field(description="safetensors or opaque, null until ingested")
    note: str | None = Field(description="why a file is kept as plain bytes")
    stored: StoredOut
    tensors: list[TensorReportOut]


class MeasuredOut(Out):
    repository: str
    commit: str
    share: float | None = Field(
        description="of the bytes of the revision's weights: copies of its tensors, and differences"
    )
    identical: float = Field(description="of the same bytes: those that are copies of its tensors")


class BaseReportOut(Out):
    declared: str | None
    declared_status: str | None = Field(
        description="resolved, absent (unknown or unreadable), no_safetensors (it has no such file"
        " so far, and nothing is coded against others), or unused (nothing needs it)"
    )
    commit: str | None
    measured: list[MeasuredOut]
    declared_share: float | None = Field(
        description="of the bytes of the revision's weights, 0 where the declared base gives"
        " nothing; null unless it is resolved and the revision ingested"
    )
    pending_job_id: str | None = Field(
        description="the ingest or re-planning that has yet to change this, null when all is done"
    )


class InfoOut(Out):
    commit: str
    files: list[FileReportOut]
    totals: TotalsOut
    base: BaseReportOut
