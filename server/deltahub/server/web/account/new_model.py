"""A new model, and files that are dropped on a page: made by the API that every client uses."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import require, writable_namespaces
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog import repositories
from deltahub.registry.errors import RegistryError, Unauthorized
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF, public_text
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-")

# A list to choose from; who has more namespaces types the name.
_MOST_NAMESPACES: Final = 100


@router.get("/new")
def show_new_model(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show the form for a new model."""
    return _form(request, hub, _known(viewer), {}, None, 200)


@router.post("/new")
def make_model(request: Request, hub: HubDep, viewer: CallerDep, form: FormDep) -> Response:
    """Create a model, and go on to its files."""
    name = f"{form.get('namespace', '')}/{form.get('name', '')}"
    try:
        repositories.create_repository(
            hub.registry, _known(viewer), name, private="private" in form
        )
    except RegistryError as error:
        status = STATUS_OF.get(error.code, 500)
        return _form(request, hub, _known(viewer), form, public_text(error), status)
    return RedirectResponse(f"/-/upload/{name}", 303)


@router.get("/upload/{namespace}/{name}")
def show_upload(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show where files are dropped that become the next commit of main."""
    full_name = f"{namespace}/{name}"
    with hub.registry.db.read() as session:
        repository = load_repository(session, viewer, full_name)
        require(session, viewer, "write", repository)
    model = repositories.get_repository(hub.registry, viewer, full_name)
    return render(request, hub, viewer, "account/upload.html", model=model, branch="main")


def _known(viewer: Caller | None) -> Caller:
    if viewer is None:
        raise Unauthorized("log in to make a model")
    return viewer


def _form(
    request: Request,
    hub: Hub,
    viewer: Caller,
    given: dict[str, str],
    problem: str | None,
    status: int,
) -> Response:
    with hub.registry.db.read() as session:
        namespaces = writable_namespaces(session, viewer, _MOST_NAMESPACES)
    return render(
        request, hub, viewer, "account/new.html", status,
        namespaces=namespaces, given=given, problem=problem,
    )  # fmt: skip
