"""One job: its progress and log while it runs, and what came of it."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import RedirectResponse, Response

from deltahub.registry.access.caller import Caller
from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo, LogLine
from deltahub.registry.results import asked
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, Hub, HubDep
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.events import Event, EventStream
from deltahub.server.streaming.job_watch import JobLook
from deltahub.server.tables.jobs import fraction_of, inputs_of
from deltahub.server.web.account.login import local_path
from deltahub.server.web.forms import FormDep
from deltahub.server.web.jobs.kinds import KindPages, arguments_of, pages_of
from deltahub.server.web.jobs.lists import required
from deltahub.server.web.rendering import render, text_of

router = APIRouter(route_class=BoundedRoute, prefix="/-/jobs")

_MOST_NUMBER: Final = 2**63 - 1
# The name of the last event of a stream: the page loads what came of the job.
_OVER: Final = "over"
# A share of the job below which the time that is left cannot be told.
_TOO_EARLY: Final = 0.05
_MOST_IN_ADDRESS: Final = 2000


@dataclass(frozen=True)
class ShownJob:
    """A job as its page shows it. left_s: how long it may take yet; None: nobody can tell."""

    job: JobInfo
    pages: KindPages
    fraction: float | None
    seconds: float | None
    left_s: float | None

    @property
    def is_active(self) -> bool:
        return self.job.state in ("queued", "running")

    @property
    def arguments(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.job.payload.get("arguments") or {}
        return {name: value for name, value in found.items() if value not in (None, [], False)}

    @property
    def works_on(self) -> tuple[str, ...]:
        return inputs_of(self.job)

    @property
    def is_asked(self) -> bool:
        """Whether a person asked for it, so that it can be asked for again."""
        return arguments_of(self.job.kind) is not None and "arguments" in self.job.payload

    @property
    def is_estimate(self) -> bool:
        return bool(self.arguments.get("dry_run"))

    def query(self, **changes: str | None) -> str:
        """The arguments as the address of a form has them, with some changed."""
        found = {**self.arguments, **changes}
        pairs = []
        for name, value in found.items():
            # No address is as long as a text file.
            is_long = isinstance(value, str) and len(value) > _MOST_IN_ADDRESS
            if name == "dry_run" or value is None or is_long:
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, bool):
                    each = "on" if each else ""
                pairs.append((name, json.dumps(each) if isinstance(each, dict) else str(each)))
        return urlencode(pairs)

    @classmethod
    def of(cls, job: JobInfo) -> "ShownJob":
        seconds = left_s = None
        if job.started_at is not None:
            end = job.finished_at or datetime.now(UTC)
            seconds = max((end - job.started_at).total_seconds(), 0.0)
        fraction = fraction_of(job)
        if job.state == "running" and seconds and fraction and _TOO_EARLY < fraction < 1:
            left_s = seconds * (1 - fraction) / fraction
        return cls(job, pages_of(job.kind), fraction, seconds, left_s)


@router.get("/{job_id}")
def show_job(job_id: str, request: Request, hub: HubDep, viewer: CallerDep) -> Response:
    """Show a job."""
    caller = required(viewer)
    job = requests.get_job(hub.registry, caller, job_id)
    log = requests.log_of(hub.registry, caller, job_id)
    return render(
        request, hub, caller, "jobs/job.html",
        shown=ShownJob.of(job), log=log, last_line=log[-1].number if log else 0,
    )  # fmt: skip


@router.get("/{job_id}/live")
async def watch_job(
    job_id: str,
    request: Request,
    hub: HubDep,
    viewer: CallerDep,
    after: Annotated[int, Query(ge=0, le=_MOST_NUMBER)] = 0,
    last_event_id: Annotated[int, Header(ge=0, le=_MOST_NUMBER)] = 0,
) -> Response:
    """Send parts of the job's page as they change, until the job is over."""
    caller = required(viewer)
    await anyio.to_thread.run_sync(requests.get_job, hub.registry, caller, job_id)
    async with AsyncExitStack() as slots:
        await slots.enter_async_context(hub.watches.slot(client_key(request, caller)))
        teller = _Teller(request, hub, caller)
        look = JobLook(
            hub.registry, caller, job_id, max(after, last_event_id), teller.line, teller.job
        )
        return EventStream(look, slots.pop_all())


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, hub: HubDep, viewer: CallerDep, form: FormDep) -> Response:
    """Ask a job to stop. The form may name the page to go to, by default the job's."""
    requests.cancel_job(hub.registry, viewer, job_id)
    return RedirectResponse(local_path(form.get("next", f"/-/jobs/{job_id}")), 303)


@router.post("/{job_id}/retry")
def retry_job(job_id: str, hub: HubDep, viewer: CallerDep) -> Response:
    """Run a job again that failed or was cancelled."""
    asked.retry(hub.registry, viewer, job_id)
    return RedirectResponse(f"/-/jobs/{job_id}", 303)


class _Teller:
    """Writes what happens to a job as parts of its page."""

    def __init__(self, request: Request, hub: Hub, viewer: Caller) -> None:
        self._request = request
        self._hub = hub
        self._viewer = viewer

    def line(self, line: LogLine) -> Event:
        return Event("", self._text("jobs/new_line.html", line=line), line.number)

    def job(self, job: JobInfo) -> Event:
        shown = ShownJob.of(job)
        if not shown.is_active:
            return Event(_OVER, job.state)
        return Event("", self._text("jobs/live.html", shown=shown))

    def _text(self, template: str, **shown: Any) -> str:
        return text_of(self._request, self._hub, self._viewer, template, **shown)
