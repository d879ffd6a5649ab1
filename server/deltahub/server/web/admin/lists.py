"""The tables of administrators: jobs, the store, and access."""

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from deltahub.registry.leases.processes import list_processes
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import Hub, HubDep
from deltahub.server.tables.access import AUDIT, ORGANIZATIONS, SESSIONS, TOKENS, USERS
from deltahub.server.tables.jobs import JOBS
from deltahub.server.tables.storage import DROPPED, FINDINGS, NAMESPACES, PACKS
from deltahub.server.tables.table import Table
from deltahub.server.web.admin.viewer import AdminDep
from deltahub.server.web.jobs.kinds import askable
from deltahub.server.web.tables import show_table

router = APIRouter(route_class=BoundedRoute, prefix="/-/admin")

_STORAGE: Final = (NAMESPACES, PACKS, FINDINGS, DROPPED)
_ACCESS: Final = (USERS, ORGANIZATIONS, TOKENS, SESSIONS, AUDIT)
TITLES: Final[Mapping[str, str]] = {
    "namespaces": "Quotas",
    "packs": "Packs",
    "findings": "Damage",
    "dropped": "Dropped history",
    "users": "Users",
    "organizations": "Organizations",
    "tokens": "Tokens",
    "sessions": "Sessions",
    "audit": "Audit log",
}
STORAGE_TABS: Final = (("", "Store"), *((each.name, TITLES[each.name]) for each in _STORAGE))
ACCESS_TABS: Final = tuple((each.name, TITLES[each.name]) for each in _ACCESS)


@router.get("/jobs")
def show_all_jobs(request: Request, hub: HubDep, viewer: AdminDep) -> Response:
    """Show the jobs of everybody, and the processes that run them."""
    processes = list_processes(hub.registry)
    return show_table(
        request, hub, viewer, JOBS, "admin/jobs.html", kinds=askable(), processes=processes
    )


@router.get("/storage/{name}")
def show_storage_table(name: str, request: Request, hub: HubDep, viewer: AdminDep) -> Response:
    """Show a table about the store."""
    return _show(request, hub, viewer, "storage", _named(_STORAGE, name))


@router.get("/access")
def show_access(viewer: AdminDep) -> Response:
    """Show the first table about access."""
    return RedirectResponse("/-/admin/access/users", 303)


@router.get("/access/{name}")
def show_access_table(name: str, request: Request, hub: HubDep, viewer: AdminDep) -> Response:
    """Show a table about users and what they did."""
    return _show(request, hub, viewer, "access", _named(_ACCESS, name))


def _named(tables: tuple[Table, ...], name: str) -> Table:
    found = next((each for each in tables if each.name == name), None)
    if found is None:
        raise HTTPException(404)
    return found


def _show(request: Request, hub: Hub, viewer: AdminDep, section: str, table: Table) -> Response:
    tabs = STORAGE_TABS if section == "storage" else ACCESS_TABS
    return show_table(
        request, hub, viewer, table, "admin/table.html",
        section=section, tabs=tabs, title=TITLES[table.name],
    )  # fmt: skip
