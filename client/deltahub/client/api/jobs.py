"""Waiting for a job of the hub."""

import time

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import record
from deltahub.client.errors import HubUnreachable, JobFailed, error_of
from deltahub.client.progress import Progress
from deltahub.client.records import Job, JobProgress

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
# How long a job may report nothing new, and how long it may take in all.
UNCHANGED_S = 24 * 3600.0
LONGEST_JOB_S = 7 * UNCHANGED_S

# Titles of progress stages, by the job's kind and by the stage that the job reports.
_WORK = {"ingest": "store", "prove_recipe": "verify", "replan": "find better bases"}
_STAGES = {"scan": "read", "store": "store", "prove": "verify", "replan": "find better bases"}


def wait_for_job(api: Api, job_id: str, progress: Progress) -> Job:
    """The job once it is done; reports its progress. JobFailed with the job's message.

    HubUnreachable if the hub does not end it in LONGEST_JOB_S, or in UNCHANGED_S after its last
    change.
    """
    job = api.get_job(job_id)
    start = changed = time.monotonic()
    # Also for a job that is already over, so that a log names every stage.
    with progress.stage(f"{_WORK.get(job.kind, job.kind)} at the hub", None) as stage:
        pause = _FIRST_POLL_S
        while not job.is_over:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
            last, job = job, api.get_job(job_id)
            now = time.monotonic()
            if (job.state, job.progress) != (last.state, last.progress):
                changed = now
            if now > min(changed + UNCHANGED_S, start + LONGEST_JOB_S):
                raise HubUnreachable(
                    f"the hub has not ended the {job.kind} job {job.id} in time; what was sent"
                    " stays there, so try again later"
                )
            if job.progress is not None:
                reported = record(JobProgress, job.progress)
                work = reported.stage or job.kind
                title = f"{_STAGES.get(work, work)} at the hub"
                stage.set_position(reported.done_bytes, reported.total_bytes, title)
    if job.state == "done":
        return job
    if job.error is None:
        raise JobFailed(f"{job.kind} job {job.id} was {job.state}")
    failure = error_of(job.error.code, job.error.message)
    raise JobFailed(f"{job.kind} job {job.id} failed: {job.error.message}") from failure
