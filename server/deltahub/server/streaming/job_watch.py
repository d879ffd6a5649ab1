"""What happens to a job, for event streams of the API and of pages."""

from collections.abc import Callable, Sequence

from deltahub.registry.access.caller import Caller
from deltahub.registry.jobs import requests
from deltahub.registry.jobs.requests import JobInfo, LogLine
from deltahub.registry.registry import Registry
from deltahub.server.streaming.events import Event


class JobLook:
    """What has happened to a job since the last look. See events.Look."""

    def __init__(
        self,
        registry: Registry,
        caller: Caller | None,
        job_id: str,
        last_line: int,
        tell_line: Callable[[LogLine], Event],
        tell_job: Callable[[JobInfo], Event],
    ) -> None:
        """last_line: number of the last line of the log that the client has."""
        self._registry = registry
        self._caller = caller
        self._job_id = job_id
        self._last_line = last_line
        self._tell_line = tell_line
        self._tell_job = tell_job
        self._told: JobInfo | None = None
        self._version: int | None = None

    def __call__(self) -> tuple[Sequence[Event], bool]:
        """Return the events, and whether the job is over."""
        version = self._registry.db.version_of_jobs()
        if self._told is not None and version is not None and version == self._version:
            return (), False
        self._version = version
        job = requests.get_job(self._registry, self._caller, self._job_id)
        events = []
        for line in requests.log_of(self._registry, self._caller, self._job_id, self._last_line):
            events.append(self._tell_line(line))
            self._last_line = line.number
        if job != self._told:
            events.append(self._tell_job(job))
        self._told = job
        return events, job.state not in ("queued", "running")
