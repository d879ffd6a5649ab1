"""Organizations and their members."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from deltahub.registry.access import organizations
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import HubDep
from deltahub.server.routes.access.own import UserDep
from deltahub.server.schemas.access import (
    MemberIn,
    MemberOut,
    OrganizationIn,
    OrganizationOut,
)

router = APIRouter(route_class=BoundedRoute, tags=["access"])


@router.post("/organizations", status_code=201)
def create_organization(body: OrganizationIn, hub: HubDep, caller: UserDep) -> OrganizationOut:
    """Make an organization, of which the caller is the administrator."""
    organizations.create_own(hub.registry, caller, body.name)
    member = MemberOut(user=caller.name, role="admin")
    return OrganizationOut(name=body.name, members=[member])


@router.get("/organizations/{organization}")
def get_organization(
    organization: str,
    hub: HubDep,
    caller: UserDep,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=organizations.MOST_MEMBERS)] = 100,
) -> OrganizationOut:
    """Show the members of an organization, to its members. after: only names behind this one."""
    found = organizations.organization_of(
        hub.registry, caller, organization, after=after, limit=limit
    )
    members = [
        MemberOut.model_validate({"user": user, "role": role})
        for user, role in found.members.items()
    ]
    return OrganizationOut(name=found.name, members=members)


@router.put("/organizations/{organization}/members/{user}", status_code=204)
def set_member(
    organization: str, user: str, body: MemberIn, hub: HubDep, caller: UserDep
) -> Response:
    """Give a user a role, in place of an earlier one. For the organization's administrators."""
    organizations.give_role(hub.registry, caller, organization, user, body.role)
    return Response(status_code=204)


@router.delete("/organizations/{organization}/members/{user}", status_code=204)
def delete_member(organization: str, user: str, hub: HubDep, caller: UserDep) -> Response:
    """Take the role of a user away. For the organization's administrators, and the user."""
    organizations.take_role(hub.registry, caller, organization, user)
    return Response(status_code=204)
