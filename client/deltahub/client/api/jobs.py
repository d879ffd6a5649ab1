"""Waiting for a job of the hub."""

import time

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import JobFailed, error_of
from deltahub.client.progress import Progress
from deltahub.client.records import Job

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 1.0


# Titles of progress stages, by the job's kind and by the stage that the job reports.
_WORK = {
    "ingest": "store",
    "prove_recipe": "verify",
    "replan": "find better bases",
    "withdraw": "store other models without it",
}
_STAGES = {
    "scan": "read",
    "store": "store",
    "prove": "verify",
    "replan": "find better bases",
    "withdraw": "store other models without it",
}


def wait_for_job(api: Api, job_id: str, progress: Progress) -> Job:
    """The job once it is done; reports its progress. JobFailed with the job's message."""
    job = api.get_job(job_id)
    # Also for a job that is already over, so that a log names every stage.
    with progress.stage(f"{_WORK.get(job.kind, job.kind)} at the hub", None) as stage:
        pause = _FIRST_POLL_S
        while not job.is_over:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
            job = api.get_job(job_id)
            reported = job.progress or {}
            done, total = reported.get("done_bytes"), reported.get("total_bytes")
            if isinstance(done, int) and isinstance(total, int):
                work = str(reported.get("stage", job.kind))
                stage.set_position(done, total, f"{_STAGES.get(work, work)} at the hub")
    if job.state == "done":
        return job
    if job.error is None:
        raise JobFailed(f"{job.kind} job {job.id} was {job.state}")
    failure = error_of(job.error.code, job.error.message)
    raise JobFailed(f"{job.kind} job {job.id} failed: {job.error.message}") from failure
