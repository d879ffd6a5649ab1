"""Background jobs: ask for them, look at them, cancel and retry them."""

from contextlib import AsyncExitStack
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo, LogLine
from deltahub.registry.results import asked
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
    wish_of,
)
from deltahub.server.streaming.client_slots import client_key
from deltahub.server.streaming.events import Event, EventStream
from deltahub.server.streaming.job_watch import JobLook

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
    user: str | None = None,
    limit: _Limit = 100,
    before: str | None = None,
) -> JobsOut:
    """List your jobs, newest first, without arguments and results; administrators see all.

    `before`: the last id that you have.
    """
    found = requests.list_jobs(
        hub.registry, caller, state, kind=kind, user=user, limit=limit, before=before
    )
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
        look = JobLook(hub.registry, caller, job_id, last_event_id, _told_line, _told_job)
        return EventStream(look, slots.pop_all())


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Ask a job to stop. A queued job stops at once; a finished job does not change."""
    return _shown(requests.cancel_job(hub.registry, caller, job_id))


@router.post("/{job_id}/retry")
def retry_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Run a job again, from its beginning, that failed or was cancelled."""
    return _shown(asked.retry(hub.registry, caller, job_id))


def _told_line(line: LogLine) -> Event:
    return Event("log", LogLineOut.model_validate(line).model_dump(mode="json"), line.number)


def _told_job(job: JobInfo) -> Event:
    return Event("job", _shown(job, is_whole=False).model_dump(mode="json"))


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
