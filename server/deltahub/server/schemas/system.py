"""Health, who the caller is, and the traffic counters."""

from typing import Literal

from deltahub.server.schemas.base import Out


class HealthOut(Out):
    status: Literal["ok"] = "ok"
    version: str


class NamespaceRoleOut(Out):
    name: str
    role: str


class WhoAmIOut(Out):
    name: str
    is_admin: bool
    scope: str
    namespaces: list[NamespaceRoleOut]


class MetricsOut(Out):
    """Totals since the server process started. sent, received, requests: at its sockets.

    rebuilt_bytes: of files that came from frames; uploaded_bytes: of files that were read as they
    had been uploaded, since their ingest is not over. hot_base_bytes: decoded blocks of bases on
    the hub's disk now; hot_base_read_bytes: of bases, read from there instead of decoded.
    """

    sent_bytes: int
    received_bytes: int
    requests: int
    rebuilt_bytes: int
    uploaded_bytes: int
    hot_base_bytes: int
    hot_base_read_bytes: int
