"""Forms that ask for a job: first an estimate, which a dry run makes, then the job itself."""

import secrets
from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from deltahub.methods.kinds.kind import JobArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import RegistryError
from deltahub.registry.jobs import requests
from deltahub.registry.results import asked
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import public_text
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.jobs import wish_of
from deltahub.server.web.forms import FormDep, WholeFormDep
from deltahub.server.web.jobs.fields import fields_of, read_arguments, texts_of
from deltahub.server.web.jobs.kinds import arguments_of, askable, pages_of
from deltahub.server.web.jobs.lists import children_of, required
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute, prefix="/-/jobs")


@router.get("/new")
def show_kinds(request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show what one may ask for."""
    return render(request, hub, required(viewer), "jobs/kinds.html", kinds=askable())


@router.get("/new/{kind}")
def show_form(kind: str, request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show a kind's form. The address may have values of its fields."""
    arguments = _arguments(kind)
    given = texts_of(request.query_params, arguments)
    return _form(request, hub, required(viewer), kind, given, {})


@router.post("/new/{kind}")
def ask(
    kind: str, request: Request, hub: HubDep, viewer: CallerDep, form: WholeFormDep
) -> Response:
    """Ask for an estimate, or with `now` for the job."""
    caller, arguments = required(viewer), _arguments(kind)
    given = texts_of(form, arguments)
    read, problems = read_arguments(arguments, given, dry_run="now" not in form)
    if read is None:
        return _form(request, hub, caller, kind, given, problems)
    key = form.get("key")
    try:
        job_id = _asked(hub, caller, read, key if isinstance(key, str) else None)
    except RegistryError as error:
        sentence = public_text(error, request)
        return _form(request, hub, caller, kind, given, {"": sentence})
    return RedirectResponse(f"/-/jobs/{job_id}", 303)


@router.post("/{job_id}/start")
def start(job_id: str, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep) -> Response:
    """Ask for the job that a dry run has estimated."""
    caller = required(viewer)
    estimated = requests.get_job(hub.registry, caller, job_id)
    values = {**estimated.payload.get("arguments", {}), "dry_run": False}
    read = _arguments(estimated.kind).model_validate(values)
    # The estimate's own id, so that a second click starts nothing.
    return RedirectResponse(f"/-/jobs/{_asked(hub, caller, read, f'after {job_id}')}", 303)


def _asked(hub: Hub, caller: Caller, arguments: JobArguments, key: str | None) -> str:
    wish = wish_of(arguments)
    return asked.ask(hub.registry, caller, wish, idempotency_key=key[:64] if key else None).id


def _arguments(kind: str) -> type[JobArguments]:
    found = arguments_of(kind)
    if found is None:
        raise HTTPException(404)
    return found


def _form(
    request: Request,
    hub: Hub,
    viewer: Caller,
    kind: str,
    given: Mapping[str, str],
    problems: Mapping[str, str],
) -> Response:
    fields = fields_of(_arguments(kind), given, problems)
    base = given.get("base", "")
    return render(
        request, hub, viewer, "jobs/form.html", 422 if problems else 200,
        pages=pages_of(kind), fields=fields, problems=problems, base=base,
        children=children_of(hub, viewer, base), key=secrets.token_hex(16),
    )  # fmt: skip
