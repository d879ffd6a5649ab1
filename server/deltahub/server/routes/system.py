"""Health, the identity of the caller, and traffic counters."""

from importlib.metadata import version

from fastapi import APIRouter

from deltahub.registry.access import organizations
from deltahub.registry.access.caller import NO_TOKEN
from deltahub.registry.errors import Forbidden, Unauthorized
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.system import HealthOut, MetricsOut, NamespaceRoleOut, WhoAmIOut

router = APIRouter(route_class=BoundedRoute, tags=["system"])

_VERSION = version("deltahub")


@router.get("/health")
async def get_health() -> HealthOut:
    """Show that the server answers, and its version."""
    return HealthOut(version=_VERSION)


@router.get("/whoami")
def get_whoami(hub: HubDep, caller: CallerDep) -> WhoAmIOut:
    """Show the user and scope of the token, and the caller's role in each namespace."""
    if caller is None:
        raise Unauthorized(NO_TOKEN)
    roles = organizations.namespaces_of(hub.registry, caller)
    return WhoAmIOut(
        name=caller.name,
        is_admin=caller.is_admin,
        scope=caller.scope,
        namespaces=[NamespaceRoleOut(name=name, role=role) for name, role in roles.items()],
    )


@router.get("/metrics")
def get_metrics(hub: HubDep, caller: CallerDep) -> MetricsOut:
    """Show bytes and requests since the server started. Administrators only."""
    if caller is None:
        raise Unauthorized("the counters need an administrator's token")
    if not caller.is_superuser:
        raise Forbidden("the counters need an administrator's token of scope admin")
    served = hub.reader.served
    return MetricsOut(
        sent_bytes=hub.traffic.sent_bytes,
        received_bytes=hub.traffic.received_bytes,
        requests=hub.traffic.requests,
        rebuilt_bytes=served.from_frames,
        uploaded_bytes=served.from_uploads,
        hot_base_bytes=hub.hot_bases.kept_bytes,
        hot_base_read_bytes=hub.hot_bases.read_bytes,
    )
