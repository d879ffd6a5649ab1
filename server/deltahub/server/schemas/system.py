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
    """Totals since the server process started, as counted at its sockets."""

    sent_bytes: int
    received_bytes: int
    requests: int
