"""What namespaces use, and may use."""

from fastapi import APIRouter, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.quotas import limits
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.system import AmountsOut, QuotaIn, QuotaOut
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["system"])


@router.get("/namespaces/{namespace}/quota")
@reads()
def get_quota(namespace: str, hub: HubDep, caller: CallerDep) -> QuotaOut:
    """Show what a namespace uses and may use. For its members, and administrators of the hub."""
    return shown_quota(hub, caller, namespace)


@router.put("/namespaces/{namespace}/quota", status_code=204)
def set_quota(namespace: str, body: QuotaIn, hub: HubDep, caller: CallerDep) -> Response:
    """Set what a namespace may use. Administrators of the hub only."""
    given = limits.Limits(body.repositories, body.stored_bytes, body.logical_bytes)
    limits.set_limits(hub.registry, caller, namespace, given, by_shell=False)
    return Response(status_code=204)


@router.delete("/namespaces/{namespace}/quota", status_code=204)
def delete_quota(namespace: str, hub: HubDep, caller: CallerDep) -> Response:
    """Let the hub's defaults count for a namespace again. Administrators of the hub only."""
    limits.set_limits(hub.registry, caller, namespace, None, by_shell=False)
    return Response(status_code=204)


def shown_quota(hub: Hub, caller: Caller | None, namespace: str) -> QuotaOut:
    """What a namespace uses and may use, for its members and administrators of the hub."""
    used, may = limits.show_limits(hub.registry, caller, namespace)
    return QuotaOut(used=AmountsOut.model_validate(used), limits=AmountsOut.model_validate(may))
