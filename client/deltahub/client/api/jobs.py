"""Waiting for the hub's background work."""

import time

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import JobFailed, error_of
from deltahub.client.progress import Progress
from deltahub.client.records import Job

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 1.0


# What a person who waits is told: by kind of the job, and by the stage that it reports.
_WORK = {"ingest": "store", "prove_recipe": "verify", "replan": "find better bases"}
_STAGES = {"scan": "read", "store": "store", "prove": "verify", "replan": "find better bases"}


def wait_for_job(api: Api, job_id: str, progress: Progress) -> Job:
    """The job once it is done, its progress shown meanwhile. JobFailed with the job's own text."""
    job = api.get_job(job_id)
    # Also where it is over already: a log names every stage, however short.
    with progress.stage(f"{_WORK.get(job.kind, job.kind)} at the hub", None) as stage:
        pause = _FIRST_POLL_S
        while not job.is_over:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
            job = api.get_job(job_id)
            told = job.progress or {}
            done, total = told.get("done_bytes"), told.get("total_bytes")
            if isinstance(done, int) and isinstance(total, int):
                work = str(told.get("stage", job.kind))
                stage.set_position(done, total, f"{_STAGES.get(work, work)} at the hub")
    if job.state == "done":
        return job
    if job.error is None:
        raise JobFailed(f"{job.kind} job {job.id} was {job.state}")
    failure = error_of(job.error.code, job.error.message)
    raise JobFailed(f"{job.kind} job {job.id} failed: {job.error.message}") from failure
