"""Background jobs: their state, and cancelling them."""

from fastapi import APIRouter

from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.schemas.transfer import JobErrorOut, JobOut, ProgressOut

router = APIRouter(route_class=BoundedRoute, prefix="/jobs", tags=["jobs"])


@router.get("/{job_id}")
def get_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Show a job's state, progress and result."""
    return _shown(requests.get_job(hub.registry, caller, job_id))


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, hub: HubDep, caller: CallerDep) -> JobOut:
    """Ask a job to stop. A queued job stops at once; a finished job does not change."""
    return _shown(requests.cancel_job(hub.registry, caller, job_id))


def _shown(job: JobInfo) -> JobOut:
    error = None
    if job.error_code is not None:
        error = JobErrorOut(code=job.error_code, message=job.error or "")
    return JobOut(
        id=job.id,
        kind=job.kind,
        state=job.state,
        progress=None if job.progress is None else ProgressOut.model_validate(dict(job.progress)),
        result=None if job.result is None else dict(job.result),
        error=error,
        attempts=job.attempts,
        retry_at=job.retry_at,
        waits_for=job.waits_for,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )
