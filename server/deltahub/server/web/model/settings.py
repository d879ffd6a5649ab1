"""What administrators of a model may change: who reads it, and whether it exists."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.errors import Conflict, InvalidRequest, LimitExceeded
from deltahub.registry.ingest import make_public
from deltahub.registry.reencode.withdraw import Change, Withdrawal, withdraw
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.web.forms import FormDep
from deltahub.server.web.model.common import load_model
from deltahub.server.web.rendering import quoted_path, render

router = APIRouter(route_class=BoundedRoute)


@router.get("/{namespace}/{name}/settings")
def show_settings(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show the settings of a model to those who may change them."""
    return _page(request, hub, viewer, f"{namespace}/{name}")


@router.post("/{namespace}/{name}/settings/visibility")
async def change_visibility(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Make a model private or public. See update_repository of the API."""
    full_name = f"{namespace}/{name}"
    check = partial(_check, hub, viewer, full_name)
    await hub.change(viewer, check)
    try:
        if form.get("visibility") == "private":
            hide = partial(withdraw, hub.registry, viewer, full_name, "private")
            waiting = await hub.change(viewer, hide)
            if waiting is not None:
                show = partial(_waits, request, hub, viewer, full_name, "private", waiting)
                return await hub.change(viewer, show)
        elif form.get("visibility") == "public":
            publish = partial(make_public.make_public, hub.registry, hub.reader, viewer, full_name)
            await hub.publish(viewer, publish)
        else:
            raise InvalidRequest("choose public or private")
    except (Conflict, InvalidRequest, LimitExceeded) as error:
        status, sentence = STATUS_OF[error.code], str(error)
        again = partial(_page, request, hub, viewer, full_name, status, visibility=sentence)
        return await hub.change(viewer, again)
    return RedirectResponse(f"/{quoted_path(full_name)}/settings", 303)


@router.post("/{namespace}/{name}/settings/delete")
def delete_model(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Delete a model whose name was typed. See delete_repository of the API."""
    full_name = f"{namespace}/{name}"
    _check(hub, viewer, full_name)
    if form.get("name") != full_name:
        sentence = f"Nothing was deleted: type {full_name} to confirm."
        return _page(request, hub, viewer, full_name, 422, deletion=sentence)
    waiting = withdraw(hub.registry, viewer, full_name, "delete")
    if waiting is not None:
        return _waits(request, hub, viewer, full_name, "delete", waiting)
    return RedirectResponse(f"/{quoted_path(namespace)}", 303)


def _check(hub: Hub, viewer: Caller | None, name: str) -> None:
    with hub.registry.db.read() as session:
        load_repository(session, viewer, name, "admin")


def _page(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    name: str,
    status: int = 200,
    *,
    visibility: str | None = None,
    deletion: str | None = None,
) -> Response:
    """visibility, deletion: what was wrong with the form of this kind."""
    _check(hub, viewer, name)
    model = load_model(hub, viewer, name)
    return render(
        request, hub, viewer, "model/settings.html", status, model=model,
        visibility_problem=visibility, deletion_problem=deletion,
    )  # fmt: skip


def _waits(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    name: str,
    change: Change,
    waiting: Withdrawal,
) -> Response:
    model = load_model(hub, viewer, name)
    return render(
        request, hub, viewer, "model/waits.html", 202, model=model, change=change, waiting=waiting
    )
