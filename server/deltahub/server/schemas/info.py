"""How a revision is stored."""

from pydantic import Field

from deltahub.server.schemas.base import Out


class StoredOut(Out):
    """Stored bytes: own only here, shared with other repositories, base of bases elsewhere."""

    own: int
    shared: int
    base: int


class TotalsOut(StoredOut):
    size: int = Field(description="bytes of all files, as a download returns them")


class TensorReportOut(Out):
    name: str | None = Field(description="null for a chunk of a file that is not safetensors")
    dtype: str
    shape: list[int]
    size: int
    codec: str
    stored: int
    base_depth: int = Field(
        description="number of bases that are decoded before it, one after another"
    )
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
        description="share of the weights' bytes that are copies or deltas of its tensors"
    )
    identical: float = Field(description="share of the weights' bytes that are copies of tensors")


class BaseReportOut(Out):
    declared: str | None
    declared_status: str | None = Field(
        description="resolved, absent (unknown or unreadable), no_safetensors (it has no"
        " safetensors file yet, and only such files serve as bases), or unused (no tensor uses it)"
    )
    commit: str | None
    measured: list[MeasuredOut]
    declared_share: float | None = Field(
        description="share of the weights' bytes that the declared base accounts for; null unless"
        " the base is resolved and the revision ingested"
    )
    pending_job_id: str | None = Field(
        description="the ingest or replan job that may still change this; null when all are done"
    )
    is_gone: bool = Field(
        description="the declaration names a revision that was dropped since, and `commit` stands"
        " in its place"
    )
    is_own_history: bool = Field(
        description="weights are differences from other revisions of this repository"
    )


class UsageOut(Out):
    """Of all revisions of the repository, as last measured; counted for its namespace's quota."""

    stored_bytes: int
    logical_bytes: int


class InfoOut(Out):
    commit: str
    usage: UsageOut
    files: list[FileReportOut]
    totals: TotalsOut
    base: BaseReportOut
