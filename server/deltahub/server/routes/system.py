"""Health, the identity of the caller, and traffic counters."""

from importlib.metadata import version

from fastapi import APIRouter, Response

from deltahub.registry.access import organizations
from deltahub.registry.access.caller import NO_TOKEN
from deltahub.registry.errors import Forbidden, Unauthorized
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.routes.access.quotas import shown_quota
from deltahub.server.schemas.system import (
    HealthOut,
    MetricsOut,
    NamespaceRoleOut,
    ProblemOut,
    WhoAmIOut,
)

router = APIRouter(route_class=BoundedRoute, tags=["system"])

_VERSION = version("deltahub")


@router.get("/health", responses={503: {"model": HealthOut, "description": "Degraded"}})
async def get_health(hub: HubDep, response: Response) -> HealthOut:
    """Show whether the hub works. Status 503 if a part does not: pushes or all requests fail then.

    For monitors. A load balancer or a process manager should ask `/v1/health/live`: downloads go on
    without a worker, and a restart of the server repairs neither a database nor a store.
    """
    found = await hub.problems()
    if found:
        response.status_code = 503
        response.headers["Retry-After"] = "10"
    return HealthOut(
        status="degraded" if found else "ok",
        version=_VERSION,
        problems=[ProblemOut(part=each.part, message=each.message) for each in found],
    )


@router.get("/health/live")
async def get_liveness() -> HealthOut:
    """Show that the server answers, whatever the state of its database, store and worker."""
    return HealthOut(status="ok", version=_VERSION, problems=[])


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
        namespaces=[
            NamespaceRoleOut(name=name, role=role, **vars(shown_quota(hub, caller, name)))
            for name, role in roles.items()
        ],
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
