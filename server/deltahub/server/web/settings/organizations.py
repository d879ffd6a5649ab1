"""The organizations that the viewer is a member of, and their members."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.registry.access import organizations
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import RegistryError
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.settings.parts import ViewerDep, back_to, page

router = APIRouter(route_class=BoundedRoute, prefix="/-/settings/organizations")

_PLACE: Final = "/-/settings/organizations"
_PAGE: Final = 100


@router.get("")
def show_organizations(request: Request, hub: HubDep, viewer: ViewerDep) -> Response:
    """Show the organizations, and the form for a new one."""
    return _list(request, hub, viewer)


@router.post("")
def create_organization(
    request: Request, hub: HubDep, viewer: ViewerDep, form: FormDep
) -> Response:
    """Make an organization."""
    name = form.get("name", "")
    try:
        organizations.create_own(hub.registry, viewer, name)
    except RegistryError as error:
        return _list(request, hub, viewer, error, name)
    return back_to(f"{_PLACE}/{name}")


@router.get("/{name}")
def show_organization(
    request: Request, name: str, hub: HubDep, viewer: ViewerDep, after: str = ""
) -> Response:
    """Show the members."""
    return _one(request, hub, viewer, name, after)


@router.post("/{name}/members")
def set_member(
    request: Request, name: str, hub: HubDep, viewer: ViewerDep, form: FormDep
) -> Response:
    """Add a member, or change the role of one."""
    user, role = form.get("user", ""), form.get("role", "")
    try:
        # give_role() refuses what is no role.
        organizations.give_role(hub.registry, viewer, name, user, role)  # type: ignore[arg-type]
    except RegistryError as error:
        return _one(request, hub, viewer, name, "", error, {"user": user, "role": role})
    return back_to(f"{_PLACE}/{name}")


@router.post("/{name}/remove")
def remove_member(
    request: Request, name: str, hub: HubDep, viewer: ViewerDep, form: FormDep
) -> Response:
    """Remove a member, perhaps the viewer."""
    user = form.get("user", "")
    try:
        organizations.take_role(hub.registry, viewer, name, user)
    except RegistryError as error:
        return _one(request, hub, viewer, name, "", error)
    return back_to(_PLACE if user == viewer.name else f"{_PLACE}/{name}")


def _list(
    request: Request,
    hub: Hub,
    viewer: Caller,
    error: RegistryError | None = None,
    name: str = "",
) -> Response:
    found = organizations.namespaces_of(hub.registry, viewer)
    return page(
        request, hub, viewer, "organizations", error,
        organizations={each: role for each, role in found.items() if each != viewer.name},
        may_create=hub.registry.settings.max_organizations > 0 or viewer.is_superuser,
        form={"name": name},
    )  # fmt: skip


def _one(
    request: Request,
    hub: Hub,
    viewer: Caller,
    name: str,
    after: str,
    error: RegistryError | None = None,
    form: dict[str, str] | None = None,
) -> Response:
    # For strangers there is no such organization, whatever they asked for.
    found = organizations.organization_of(hub.registry, viewer, name, after=after, limit=_PAGE + 1)
    members = list(found.members.items())
    return page(
        request, hub, viewer, "organization", error,
        organization=found, members=members[:_PAGE],
        after=members[_PAGE - 1][0] if len(members) > _PAGE else None,
        may_manage=organizations.may_manage(hub.registry, viewer, name),
        form=form or {"user": "", "role": "write"},
    )  # fmt: skip
