"""Health, the identity of the caller, and traffic counters."""

from typing import Literal

from pydantic import Field

from deltahub.server.schemas.base import In, Out


class ProblemOut(Out):
    part: Literal["database", "store", "worker"]
    message: str


class HealthOut(Out):
    status: Literal["ok", "degraded"]
    version: str
    problems: list[ProblemOut] = Field(description="the parts that do not work; empty if ok")


class AmountsOut(Out):
    """What a namespace uses, or may use: then null means without a limit."""

    repositories: int | None
    stored_bytes: int | None = Field(
        description="in the object store; what repositories share counts with the oldest of them"
    )
    logical_bytes: int | None = Field(
        description="files of all revisions of each repository, each once, as they were pushed"
    )


class QuotaIn(In):
    """What a namespace may use. Null or missing: no limit."""

    repositories: int | None = None
    stored_bytes: int | None = None
    logical_bytes: int | None = None


class QuotaOut(Out):
    used: AmountsOut
    limits: AmountsOut


class NamespaceRoleOut(QuotaOut):
    name: str
    role: str


class WhoAmIOut(Out):
    name: str
    is_admin: bool
    scope: str
    namespaces: list[NamespaceRoleOut]


class MetricsOut(Out):
    """Totals since the server process started.

    sent_bytes, received_bytes, requests: counted at its sockets. rebuilt_bytes: bytes of files that
    were decoded from frames; uploaded_bytes: bytes of files that were read from the upload, because
    their ingest is not over. hot_base_bytes: decoded blocks of bases that are on the hub's disk
    now; hot_base_read_bytes: bytes of bases that were read from there instead of decoded.
    """

    sent_bytes: int
    received_bytes: int
    requests: int
    rebuilt_bytes: int
    uploaded_bytes: int
    hot_base_bytes: int
    hot_base_read_bytes: int
