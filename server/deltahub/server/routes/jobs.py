"""Background jobs: ask for them, look at them, cancel and retry them."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from deltahub.methods.kinds.kind import Arguments, JobArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo
from deltahub.registry.registry import Registry
from deltahub.registry.results import asked
from deltahub.registry.results.asked import Wish
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.jobs import (
    AskAnyIn,
    AskIn,
    JobErrorOut,
    JobOut,
    JobsOut,
    LogLineOut,
    LogOut,
    ProgressOut,
)
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.events import Event, EventStream

router = APIRouter(route_class=BoundedRoute, prefix="/jobs", tags=["jobs"])

_Limit = Annotated[int, Query(ge=1, le=1000)]
_MOST = 2**63 - 1


@router.post("", status_code=202)
def create_job(body: AskAnyIn, hub: HubDep, caller: CallerDep) -> JobOut:
    """Ask for a job. Its inputs' revisions are fixed now, and its arguments are checked.

    `docs/jobs.md` describes the kinds. With `dry_run` the job only checks and estimates.
    """
    assert isinstance(body, AskIn)
    job = asked.ask(
        hub.registry,
        caller,
        wish_of(body.arguments),
        priority=body.priority,
        idempotency_key=body.idempotency_key,
    )
    return _shown(job)


@router.get("")
def list_jobs(
    hub: HubDep,
    caller: CallerDep,
    state: str | None = None,
    kind: str | None = None,
    limit: _Limit = 100,
    before: str | None = None,
) -> JobsOut:
    """List your jobs, newest first, without arguments and results; administrators see all.

    `before`: the last id that you have.
    """
    found = requests.list_jobs(hub.registry, caller, state, kind=kind, limit=limit, before=before)
    return JobsOut(items=[_shown(job, is_whole=False) for job in found])


@router.get("/{job_id}")
def get_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Show a job's state, progress and result."""
    return _shown(requests.get_job(hub.registry, caller, job_id))


@router.get("/{job_id}/log")
def get_job_log(
    job_id: str,
    hub: HubDep,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, le=_MOST)] = 0,
    limit: _Limit = 1000,
) -> LogOut:
    """Show the lines of a job's log. `after`: the number of the last line that you have."""
    found = requests.log_of(hub.registry, caller, job_id, after, limit)
    return LogOut(items=[LogLineOut.model_validate(line) for line in found])


@router.get("/{job_id}/events", response_class=Response)
async def get_job_events(
    job_id: str,
    request: Request,
    hub: HubDep,
    caller: CallerDep,
    last_event_id: Annotated[int, Header(ge=0, le=_MOST)] = 0,
) -> Response:
    """Tell what happens to a job until it is over, as server-sent events.

    `job`: the job as `GET /v1/jobs` lists it, at first and after each change. `log`: a line of its
    log; its id, as `Last-Event-ID`, continues after it.
    """
    # The errors of a job that the caller may not see come before the stream begins.
    await anyio.to_thread.run_sync(requests.get_job, hub.registry, caller, job_id)
    async with AsyncExitStack() as slots:
        await slots.enter_async_context(hub.watches.slot(client_key(request, caller)))
        look = _Look(hub.registry, caller, job_id, last_event_id)
        return EventStream(look, slots.pop_all())


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Ask a job to stop. A queued job stops at once; a finished job does not change."""
    return _shown(requests.cancel_job(hub.registry, caller, job_id))


@router.post("/{job_id}/retry")
def retry_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Run a job again, from its beginning, that failed or was cancelled."""
    return _shown(asked.retry(hub.registry, caller, job_id))


def wish_of(arguments: JobArguments) -> Wish:
    """Return what the registry is asked for. A job that makes no repository only reads."""
    kind, given = arguments.kind, arguments.model_dump(mode="json")
    if isinstance(arguments, Arguments):
        return Wish(kind, given, arguments.name, arguments.inputs(), arguments.private)
    return Wish(kind, given, None, arguments.inputs(), only_reads=True)


class _Look:
    """What has happened to a job since the last look."""

    def __init__(
        self, registry: Registry, caller: Caller | None, job_id: str, last_line: int
    ) -> None:
        self._registry = registry
        self._caller = caller
        self._job_id = job_id
        self._last_line = last_line
        self._told: JobInfo | None = None
        self._version: int | None = None

    def __call__(self) -> tuple[Sequence[Event], bool]:
        version = self._registry.db.version_of_jobs()
        if self._told is not None and version is not None and version == self._version:
            return (), False
        self._version = version
        job = requests.get_job(self._registry, self._caller, self._job_id)
        events = []
        for line in requests.log_of(self._registry, self._caller, self._job_id, self._last_line):
            text = LogLineOut.model_validate(line).model_dump(mode="json")
            events.append(Event("log", text, line.number))
            self._last_line = line.number
        if job != self._told:
            shown = _shown(job, is_whole=False)
            events.append(Event("job", shown.model_dump(mode="json")))
        self._told = job
        return events, job.state not in ("queued", "running")


def _shown(job: JobInfo, *, is_whole: bool = True) -> JobOut:
    """is_whole: with its arguments and its result, which may be long."""
    error = None
    if job.error_code is not None:
        error = JobErrorOut(code=job.error_code, message=job.error or "")
    return JobOut(
        id=job.id,
        kind=job.kind,
        state=job.state,
        progress=None if job.progress is None else ProgressOut.model_validate(dict(job.progress)),
        result=dict(job.result) if is_whole and job.result is not None else None,
        error=error,
        attempts=job.attempts,
        retry_at=job.retry_at,
        waits_for=job.waits_for,
        arguments=job.payload.get("arguments") if is_whole else None,
        priority=job.payload.get("priority"),
        repository=job.repository,
        user=job.user,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )
