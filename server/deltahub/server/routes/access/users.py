"""All users, for administrators of the hub."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from deltahub.registry.access import accounts
from deltahub.registry.access.login import invitations
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.routes.access.own import UserDep
from deltahub.server.schemas.access import (
    InvitationOut,
    RemovedUserOut,
    UserChangeIn,
    UserIn,
    UserOut,
    UsersOut,
)

router = APIRouter(route_class=BoundedRoute, tags=["access"])


@router.get("/users")
def list_users(
    hub: HubDep,
    caller: UserDep,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> UsersOut:
    """List users by name. after: only names behind this one. Administrators of the hub only."""
    found = accounts.list_accounts(hub.registry, caller, after=after, limit=limit)
    return UsersOut(items=[UserOut.model_validate(each) for each in found])


@router.post("/users", status_code=201)
def create_user(body: UserIn, hub: HubDep, caller: UserDep) -> InvitationOut:
    """Make a user, and an invitation for them. Administrators of the hub only."""
    secret = accounts.create_invited(
        hub.registry, caller, body.name, is_admin=body.is_admin, by_shell=False
    )
    return InvitationOut(path=invitations.PATH + secret)


@router.post("/users/{user}/invitation", status_code=201)
def create_invitation(user: str, hub: HubDep, caller: UserDep) -> InvitationOut:
    """Invite a user to set a password, also in place of a forgotten one. Administrators only."""
    secret = invitations.invite(hub.registry, caller, user, by_shell=False)
    return InvitationOut(path=invitations.PATH + secret)


@router.patch("/users/{user}", status_code=204)
def update_user(user: str, body: UserChangeIn, hub: HubDep, caller: UserDep) -> Response:
    """End all access of a user at once, or let them in again. Administrators of the hub only."""
    change = accounts.disable if body.is_disabled else accounts.enable
    change(hub.registry, caller, user, by_shell=False)
    return Response(status_code=204)


@router.delete("/users/{user}")
def delete_user(user: str, hub: HubDep, caller: UserDep) -> RemovedUserOut:
    """Remove a user who has no models, jobs or uploads. Administrators of the hub only."""
    bereft = accounts.remove(hub.registry, caller, user, by_shell=False)
    return RemovedUserOut(without_administrator=list(bereft))
