"""Users and organizations: who they are, and who is a member."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.organizations import MOST_MEMBERS, namespaces_of, organization_of
from deltahub.registry.errors import NotFound
from deltahub.registry.names import quoted
from deltahub.registry.quotas.namespaces import NamespaceInfo, get_namespace
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.turns import reads

router = APIRouter(route_class=BoundedRoute, prefix="/api")


@router.get("/users/{name}/overview")
@reads(is_long=True)
def show_user(name: str, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Show a user: the models that the caller may read, and for oneself the organizations."""
    info = _of_kind(hub, caller, name, "user")
    organizations = []
    if caller is not None and caller.name == info.name:
        organizations = [
            _named(each) | {"name": each, "roleInOrg": role}
            for each, role in namespaces_of(hub.registry, caller).items()
            if each != caller.name
        ]
    shown = _named(info.name) | {"user": info.name, "type": "user", "isPro": False}
    return JSONResponse(shown | {"orgs": organizations} | _counts(info))


@router.get("/organizations/{name}/overview")
@reads(is_long=True)
def show_organization(name: str, hub: HubDep, caller: CallerDep) -> JSONResponse:
    """Show an organization: the models that the caller may read, and for members how many."""
    info = _of_kind(hub, caller, name, "organization")
    shown = _named(info.name) | {"name": info.name, "type": "org", "isVerified": False}
    if info.members is not None:
        shown["numUsers"] = info.n_members
    return JSONResponse(shown | _counts(info))


@router.get("/organizations/{name}/members")
@reads(is_long=True)
def list_members(
    name: str, request: Request, hub: HubDep, caller: CallerDep, cursor: str = ""
) -> JSONResponse:
    """List the members of an organization with their roles, to its members alone.

    cursor: the name after which the page begins.
    """
    found = organization_of(hub.registry, caller, name, after=cursor)
    shown = [
        _named(user) | {"user": user, "type": "user", "role": role}
        for user, role in found.members.items()
    ]
    headers = {}
    if len(shown) == MOST_MEMBERS:
        where = f"{origin_of(request)}/api/organizations/{found.name}/members"
        headers["Link"] = f'<{where}?cursor={shown[-1]["user"]}>; rel="next"'
    return JSONResponse(shown, headers=headers)


def _of_kind(hub: Hub, caller: Caller | None, name: str, kind: str) -> NamespaceInfo:
    info = get_namespace(hub.registry, caller, name)
    if info.kind != kind:
        raise NotFound(f"{quoted(name)} is the name of no {kind} here, but of {_A[info.kind]}")
    return info


_A = {"user": "a user", "organization": "an organization"}


def _named(name: str) -> dict[str, Any]:
    # Nobody has a picture here.
    return {"fullname": name, "avatarUrl": ""}


def _counts(info: NamespaceInfo) -> dict[str, int]:
    """Numbers of what is on the hub; all that it does not have is 0."""
    none = ("Datasets", "Spaces", "Discussions", "Papers", "Upvotes", "Likes", "Following",
            "Followers")  # fmt: skip
    return {"numModels": info.usage.repositories} | {f"num{each}": 0 for each in none}
