"""Upgrades of bases: what is planned for their adapters, and what was decided."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from deltahub.registry.upgrades import decisions, put_back, rules, shown
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.upgrades import (
    ApproveIn,
    DecidedOut,
    MoveOut,
    PutBackOut,
    RejectIn,
    UpgradeDetailOut,
    UpgradeOut,
    UpgradePolicyIn,
    UpgradePolicyOut,
    UpgradesOut,
)
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, tags=["upgrades"])

_Id = Annotated[int, Path(ge=1, lt=1 << 63)]
_State = Literal["proposed", "running", "done", "put_back", "rejected"]


@router.get("/upgrades")
@reads(is_long=True)
def list_upgrades(
    hub: HubDep,
    caller: CallerDep,
    base: Annotated[
        str | None, Query(max_length=200, description="namespace/name of the old or new base")
    ] = None,
    state: _State | None = None,
    before: Annotated[
        int | None, Query(ge=1, lt=1 << 63, description="id of the last one of the page before")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 30,
) -> UpgradesOut:
    """List the upgrades whose bases the caller may read, newest first."""
    found = shown.list_upgrades(
        hub.registry, caller, base=base, state=state, before=before, limit=limit
    )
    return UpgradesOut(items=[UpgradeOut.model_validate(each) for each in found])


@router.get("/upgrades/{upgrade_id}")
@reads(is_long=True)
def get_upgrade(upgrade_id: _Id, hub: HubDep, caller: CallerDep) -> UpgradeDetailOut:
    """Show an upgrade: the plan of each adapter that the caller may read, and what became of it."""
    upgrade, moves = shown.get_upgrade(hub.registry, caller, upgrade_id)
    told = UpgradeOut.model_validate(upgrade).model_dump()
    return UpgradeDetailOut(**told, adapters=[MoveOut.model_validate(each) for each in moves])


@router.post("/upgrades/{upgrade_id}/approve")
def approve_upgrade(upgrade_id: _Id, body: ApproveIn, hub: HubDep, caller: CallerDep) -> DecidedOut:
    """Let adapters move: those that are named, or all that are proposed and can move."""
    found = decisions.approve(hub.registry, caller, upgrade_id, body.adapters, body.task)
    return DecidedOut.model_validate(found)


@router.post("/upgrades/{upgrade_id}/reject")
def reject_upgrade(upgrade_id: _Id, body: RejectIn, hub: HubDep, caller: CallerDep) -> DecidedOut:
    """Leave adapters on their old base: those that are named, or all that have not begun."""
    found = decisions.reject(hub.registry, caller, upgrade_id, body.adapters)
    return DecidedOut.model_validate(found)


@router.post("/upgrades/{upgrade_id}/put-back")
def put_back_upgrade(upgrade_id: _Id, hub: HubDep, caller: CallerDep) -> PutBackOut:
    """Stop the moves of an upgrade, and delete what they made, unless somebody has changed it."""
    return PutBackOut.model_validate(put_back.put_back(hub.registry, caller, upgrade_id))


@router.get("/repositories/{namespace}/{name}/upgrades/policy")
@reads()
def get_base_policy(namespace: str, name: str, hub: HubDep, caller: CallerDep) -> UpgradePolicyOut:
    """Tell whether upgrades of a base are proposed, and whether by a policy of its own."""
    found = rules.read_policy(hub.registry, caller, f"{namespace}/{name}")
    return UpgradePolicyOut.model_validate(found)


@router.put("/repositories/{namespace}/{name}/upgrades/policy", status_code=204)
def set_base_policy(
    namespace: str, name: str, body: UpgradePolicyIn, hub: HubDep, caller: CallerDep
) -> Response:
    """Say whether upgrades of a base are proposed: `ask`, `auto` or `off`."""
    rules.set_policy(hub.registry, caller, f"{namespace}/{name}", body.policy)
    return Response(status_code=204)


@router.get("/namespaces/{namespace}/upgrades/policy")
@reads()
def get_namespace_policy(namespace: str, hub: HubDep, caller: CallerDep) -> UpgradePolicyOut:
    """Tell the same for the bases of a namespace that have no policy of their own."""
    return UpgradePolicyOut.model_validate(rules.read_policy(hub.registry, caller, namespace))


@router.put("/namespaces/{namespace}/upgrades/policy", status_code=204)
def set_namespace_policy(
    namespace: str, body: UpgradePolicyIn, hub: HubDep, caller: CallerDep
) -> Response:
    """Say the same for all bases of a namespace that have no policy of their own."""
    rules.set_policy(hub.registry, caller, namespace, body.policy)
    return Response(status_code=204)
