"""What the hub found out about an adapter, and the button that converts it."""

import re
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.repositories import DEFAULT_BRANCH, load_repository
from deltahub.registry.adapters.files import CONFIG
from deltahub.registry.adapters.inspections import ask_for_report
from deltahub.registry.adapters.reports import shown_report
from deltahub.registry.adapters.rules import conversion_key, rule_for
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.errors import Conflict, RegistryError, RepositoryNotFound
from deltahub.registry.jobs.requests import JobInfo
from deltahub.registry.results import asked
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.errors import STATUS_OF, public_text
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.schemas.jobs import wish_of
from deltahub.server.web.forms import FormDep
from deltahub.server.web.jobs.reports import find_report
from deltahub.server.web.model.common import AtRevision, load_at
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

_ADDRESS: Final = re.compile(r"https://[^\s\"'<>]+")


class Base(BaseModel):
    """The base of an adapter, as its report names it."""

    name: str
    commit: str | None = None
    is_at_hand: bool
    differs: bool = False


class Verdict(BaseModel):
    """Whether one engine can serve an adapter."""

    engine: str
    version: str
    verdict: str
    reasons: list[str]
    sources: list[str]

    @property
    def facts(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """(reason, links as (host, address) to where it is read from)."""
        found = []
        for reason, source in zip_longest(self.reasons, self.sources, fillvalue=""):
            addresses = _ADDRESS.findall(source)
            found.append((reason, [(urlsplit(each).netloc, each) for each in addresses]))
        return found


class Report(BaseModel):
    """The parts of an adapter's report that its page shows; docs/adapters.md says what each is."""

    peft_type: str
    init: str
    ranks: list[int]
    scales: list[float]
    base: Base | None
    n_modules: int
    extras: dict[str, int]
    initial_factors: str | None
    faults: list[str]
    notes: list[str] = Field(default=[])
    state: str
    why: str
    way_out: str
    verdicts: list[Verdict]


@router.get("/{namespace}/{name}/adapter")
def show_adapter(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show the report on the adapter at the head of main."""
    return _page(request, hub, viewer, load_at(hub, viewer, namespace, name, DEFAULT_BRANCH))


@router.post("/{namespace}/{name}/adapter/convert")
def convert_adapter(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep, form: FormDep
) -> Response:
    """Ask for the conversion, and go to the page of its job."""
    at = load_at(hub, viewer, namespace, name, DEFAULT_BRANCH)
    try:
        job = _asked(hub, viewer, at)
    except RegistryError as error:
        problem = public_text(error, request)
        return _page(request, hub, viewer, at, STATUS_OF.get(error.code, 422), problem)
    return RedirectResponse(f"/-/jobs/{job.id}", 303)


def _asked(hub: Hub, viewer: Caller | None, at: AtRevision) -> JobInfo:
    """The job that converts the adapter. A second click, or a rule, has asked for the same one."""
    with hub.registry.db.read() as session:
        load_repository(session, viewer, at.model.name, "write")
    if at.row is None or at.model.adapter != "convertible":
        raise Conflict(f"{at.model.name} is no adapter that can be converted now")
    adapter = f"{at.model.name}@{at.row.commit}"
    wish = wish_of(ConvertAdapterArguments(adapter=adapter))
    job = asked.ask(hub.registry, viewer, wish, idempotency_key=conversion_key(adapter))
    if job.state == "done":  # and main was set back to what was pushed since
        job = asked.ask(hub.registry, viewer, wish)
    return job


def _page(
    request: Request,
    hub: Hub,
    viewer: Caller | None,
    at: AtRevision,
    status: int = 200,
    problem: str | None = None,
) -> Response:
    if at.row is None:
        raise HTTPException(404)
    with hub.registry.db.read() as session:
        found = shown_report(session, viewer, at.row.id)
        rule = rule_for(session, at.repository)
        if found is None and CONFIG not in entries_at(session, at.row, [CONFIG]):
            raise HTTPException(404)
    if found is None:
        ask_for_report(hub.registry, at.row.id)
    report = None if found is None else Report.model_validate(found)
    shown: dict[str, Any] = {"model": at.model, "report": report, "rule": rule, "problem": problem}
    shown["links_base"] = report is not None and _may_read(hub, viewer, report.base)
    shown["conversion"] = find_report(hub, at.row, "convert_adapter")
    return render(request, hub, viewer, "model/adapter.html", status, **shown)


def _may_read(hub: Hub, viewer: Caller | None, base: Base | None) -> bool:
    """Whether the base is a model of this hub that the viewer may read."""
    if base is None or not base.is_at_hand:
        return False
    try:
        with hub.registry.db.read() as session:
            load_repository(session, viewer, base.name)
    except RepositoryNotFound:
        return False
    return True
