"""Waiting for a job of the hub."""

import time
from collections.abc import Callable

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import record
from deltahub.client.errors import HubUnreachable, JobFailed, error_of
from deltahub.client.progress import Progress
from deltahub.client.records import Job, JobProgress

_FIRST_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
# A job that waits so long for the same thing says so.
_PATIENCE_S = 5.0
# How long a job may report nothing new, and how long it may take in all.
UNCHANGED_S = 24 * 3600.0
LONGEST_JOB_S = 7 * UNCHANGED_S

# Titles of progress stages, by the job's kind and by the stage that the job reports.
_WORK = {
    "ingest": "store",
    "inspect_adapter": "look at the adapter",
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


def wait_for_job(
    api: Api, job_id: str, progress: Progress, look: Callable[[Job], None] = lambda job: None
) -> Job:
    """The job once it is done; reports its progress, and what it waits for.

    look(job): is called each time that the job was looked at.

    JobFailed with the job's message. A job that is repeated, because the hub's disk is full for
    example, is waited for: Ctrl-C ends the wait, and the job goes on. HubUnreachable if the hub
    does not end it in LONGEST_JOB_S, or in UNCHANGED_S after its last change.
    """
    job = api.get_job(job_id)
    start = changed = time.monotonic()
    # Also for a job that is already over, so that a log names every stage.
    has_bytes = job.kind in _WORK
    title = f"{_WORK.get(job.kind, job.kind)} at the hub"
    with progress.stage(title, None, is_bytes=has_bytes) as stage:
        pause = _FIRST_POLL_S
        waiting = _Waiting(progress)
        while not job.is_over:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
            last, job = job, api.get_job(job_id)
            waiting.look(job)
            look(job)
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
                title = f"{reported.sentence(_STAGES.get(work, work))} at the hub"
                done, total = reported.done_bytes, reported.total_bytes
                # Other kinds count weights, texts or tokens: a share says the same for all.
                stage.set_position(*((done, total) if has_bytes else _percent(done, total)), title)
    look(job)
    if job.state == "done":
        return job
    if job.error is None:
        raise JobFailed(f"{job.kind} job {job.id} was {job.state}")
    failure = error_of(job.error.code, job.error.message)
    raise JobFailed(f"{job.kind} job {job.id} failed: {job.error.message}") from failure


def _percent(done: int, total: int) -> tuple[int, int | None]:
    return (100 * done // total, 100) if total else (0, None)


class _Waiting:
    """Notes what a job waits for, once for each reason that lasts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._reason: str | None = None
        self._since = 0.0
        self._is_noted = False

    def look(self, job: Job) -> None:
        now = time.monotonic()
        if job.waits_for != self._reason:
            self._reason, self._since, self._is_noted = job.waits_for, now, False
        if self._reason and not self._is_noted and now - self._since >= _PATIENCE_S:
            self._is_noted = True
            work = _WORK.get(job.kind, job.kind)
            self._progress.note(f"the hub's job {job.id} ({work}) waits for {self._reason}")
