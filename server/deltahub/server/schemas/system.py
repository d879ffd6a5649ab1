"""Health, the identity of the caller, and traffic counters."""

from typing import Literal

from pydantic import Field

from deltahub.server.schemas.base import Out


class ProblemOut(Out):
    part: Literal["database", "store", "worker"]
    message: str


class HealthOut(Out):
    status: Literal["ok", "degraded"]
    version: str
    problems: list[ProblemOut] = Field(description="the parts that do not work; empty if ok")


class NamespaceRoleOut(Out):
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
