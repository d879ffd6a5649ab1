"""Runs the registry's jobs as durable DBOS workflows of named steps. No other file uses DBOS.

Each row of the `jobs` table is run by the workflow with the same id. DBOS records finished steps in
a file of its own, so that a worker resumes a job at its first unfinished step. If that file is
lost, jobs start from the beginning: every step may run twice.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dbos import DBOS, DBOSConfig, Serializer, SetWorkflowID, WorkflowStatus

from deltahub.registry.db.models import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import JobFailed, Unavailable
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from deltahub.workers.context import JobCancelled, JobContext, StepFailed
from deltahub.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
JobFunction = Callable[[JobContext, dict[str, Any]], dict[str, Any]]

# Increase it when the order or the results of any job's steps change: jobs that older code began
# then start from the beginning, instead of replaying steps that no longer fit.
STEPS_VERSION = "3"
# DBOS needs an id that is unique among live processes, and resumes workflows of the same id. A
# constant is both, because the lock of the data folder allows one worker.
EXECUTOR_ID = "worker"
DATABASE_NAME = "jobs.sqlite"
CLEANUP_INTERVAL_S = 5.0
# Longest time between two queries for queued jobs, even if the database did not change.
MAX_QUERY_INTERVAL_S = 2.0
_UNFINISHED = ["PENDING", "ENQUEUED", "DELAYED"]
_FINISHED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class JsonSerializer(Serializer):
    """JSON instead of the default pickle, because unpickling a modified file would run code."""

    def serialize(self, data: Any) -> str:
        if isinstance(data, BaseException):
            code = getattr(data, "code", JobFailed.code)
            return json.dumps({"error": {"code": str(code), "message": str(data)}})
        return json.dumps({"value": data})

    def deserialize(self, serialized_data: str) -> Any:
        data = json.loads(serialized_data)
        if "error" not in data:
            return data["value"]
        code, message = data["error"]["code"], data["error"]["message"]
        if code == JobCancelled.code:
            return JobCancelled(message)
        return StepFailed(code, message)

    def name(self) -> str:
        return "deltahub_json"


class Engine:
    """Runs the jobs of one registry. One for each process, because DBOS is global."""

    def __init__(
        self, registry: Registry, settings: WorkerSettings, kinds: Mapping[str, JobFunction]
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._kinds = kinds
        # One cache of decoded blocks for all jobs of the process.
        self._reader = FileReader(registry)
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._active: set[str] = set()  # jobs started here, or that DBOS will resume here
        self._in_thread: set[str] = set()  # jobs that a thread runs
        self._is_recovering = True  # DBOS may still resume workflows of an earlier process
        self._is_clean = False  # the DBOS file had no workflow, and none was started since
        self._n_steps = 0  # steps that run now
        self._cleaned_at = 0.0
        # Version of the database at the query after which no queued job was left.
        self._drained_version: int | None = None
        self._queried_at = 0.0

        path = registry.data_dir / DATABASE_NAME
        _use_write_ahead_log(path)
        config: DBOSConfig = {
            "name": "deltahub",
            "system_database_url": f"sqlite:///{path}",
            "application_version": STEPS_VERSION,
            "executor_id": EXECUTOR_ID,
            "serializer": JsonSerializer(),
            "enable_otlp": False,
            "log_level": "WARNING",
            # Notifications and schedules are not used: their threads poll as rarely as possible.
            "notification_listener_polling_interval_sec": 30.0,
            "scheduler_polling_interval_sec": 3600.0,
        }
        self._dbos = DBOS(config=config)

        def job(job_id: str, kind: str, payload: dict[str, Any]) -> None:
            self._run_job(job_id, kind, payload)

        self._workflow = DBOS.workflow(name="job", max_recovery_attempts=settings.max_attempts)(job)

    def start(self) -> None:
        """Start DBOS, and resume the jobs that an earlier process left unfinished."""
        DBOS.launch()
        for job in self._running_rows():
            self._resume_row(job.id, job.kind, job.payload)

    def run(self, stop: threading.Event) -> None:
        """Start queued jobs, oldest first, until `stop` is set; then wait for running steps.

        Waits at most stop_grace_s seconds. The process must end after this, because the threads of
        unfinished jobs block for ever. The next worker resumes these jobs.
        """
        while not stop.wait(self._settings.poll_interval_s):
            try:
                self._start_queued()
                self._clean_up()
            except Unavailable as error:
                log.warning("looking for jobs again later: %s", error)
        self._is_stopping.set()
        deadline = time.monotonic() + self._settings.stop_grace_s
        while self._n_steps and time.monotonic() < deadline:
            time.sleep(0.02)

    def _start_queued(self) -> None:
        with self._lock:
            n_free = self._settings.concurrency - len(self._active)
        if n_free <= 0:
            return
        version = self._registry.db.version()  # before the query: later writes change the version
        now = time.monotonic()
        if (
            version is not None
            and version == self._drained_version
            and now - self._queried_at < MAX_QUERY_INTERVAL_S
        ):
            return
        with self._registry.db.read() as session:
            queued = queue.next_queued(session, n_free)
        self._drained_version = version if len(queued) < n_free else None
        self._queried_at = now
        for job in queued:
            self._start_workflow(job.id, job.kind, job.payload)

    def _start_workflow(self, job_id: str, kind: str, payload: dict[str, Any]) -> None:
        with self._lock:
            if job_id in self._active:
                return
            self._active.add(job_id)
        self._is_clean = False
        with SetWorkflowID(job_id):
            DBOS.start_workflow(self._workflow, job_id, kind, payload)

    def _resume_row(self, job_id: str, kind: str, payload: dict[str, Any]) -> None:
        """Resume, restart or end a job whose row says running, by the state of its workflow."""
        status = DBOS.get_workflow_status(job_id)
        if status is not None and _is_unfinished(status):
            if status.app_version == STEPS_VERSION:
                with self._lock:
                    self._active.add(job_id)  # DBOS resumes it by itself
                return
            DBOS.delete_workflow(job_id)  # another version of the steps began it
        elif status is not None:
            self._fail_row(job_id, status)
            return
        self._start_workflow(job_id, kind, payload)

    def _fail_row(self, job_id: str, status: WorkflowStatus) -> None:
        """Mark a job as failed whose workflow ended without writing a result."""
        message = f"the job stopped without a result ({status.status}); push again to repeat it"
        with self._registry.db.write() as session:
            queue.mark_failed(session, job_id, JobFailed.code, message)

    def _running_rows(self) -> list[Job]:
        with self._registry.db.read() as session:
            return queue.running(session)

    def _run_job(self, job_id: str, kind: str, payload: dict[str, Any]) -> None:
        with self._lock:
            self._active.add(job_id)
            self._in_thread.add(job_id)
        try:
            self._run_to_result(job_id, kind, payload)
        finally:
            with self._lock:
                self._active.discard(job_id)
                self._in_thread.discard(job_id)

    def _run_to_result(self, job_id: str, kind: str, payload: dict[str, Any]) -> None:
        context = JobContext(self._registry, self._reader, job_id, self._run_step)
        started_at = time.monotonic()
        try:
            with self._registry.db.write() as session:
                if not queue.mark_running(session, job_id):
                    raise JobCancelled("cancelled before it began")
            function = self._kinds.get(kind)
            if function is None:
                raise StepFailed(JobFailed.code, f"this version knows no job of kind {kind!r}")
            result = function(context, payload)
        except JobCancelled:
            with self._registry.db.write() as session:
                queue.mark_cancelled(session, job_id)
        except Exception as error:
            code = error.code if isinstance(error, StepFailed) else JobFailed.code
            if not isinstance(error, StepFailed):
                log.exception("job=%s kind=%s broke between steps", job_id, kind)
            log.warning("job=%s kind=%s failed code=%s: %s", job_id, kind, code, error)
            with self._registry.db.write() as session:
                queue.mark_failed(session, job_id, code, str(error))
        else:
            with self._registry.db.write() as session:
                queue.mark_done(session, job_id, result)
            log.info(
                "job=%s kind=%s done duration_s=%.3f", job_id, kind, time.monotonic() - started_at
            )

    def _run_step(self, name: str, function: Callable[[], T]) -> T:
        self._park_if_stopping()
        with self._lock:
            self._n_steps += 1
        try:
            return DBOS.run_step({"name": name}, function)
        finally:
            with self._lock:
                self._n_steps -= 1

    def _park_if_stopping(self) -> None:
        # An exception would end the workflow for good. A thread that blocks until the process ends
        # leaves it unfinished, so that the next worker resumes it.
        if self._is_stopping.is_set():
            threading.Event().wait()

    def _clean_up(self) -> None:
        """Delete finished workflows, and mark jobs as failed whose workflow DBOS gave up."""
        now = time.monotonic()
        if self._is_clean or now - self._cleaned_at < CLEANUP_INTERVAL_S:
            return
        self._cleaned_at = now
        for job in self._running_rows():
            status = DBOS.get_workflow_status(job.id)
            if status is not None and not _is_unfinished(status):
                self._fail_row(job.id, status)
                with self._lock:
                    self._active.discard(job.id)
        unfinished = _workflow_ids(_UNFINISHED, app_version=STEPS_VERSION)
        finished = _workflow_ids(_FINISHED)
        if finished:
            DBOS.delete_workflows(finished)
        with self._lock:
            n_unstarted = len(set(unfinished) - self._in_thread)
        if self._is_recovering and n_unstarted == 0:
            self._end_recovery()
        self._is_clean = not (self._is_recovering or unfinished or finished)

    def _end_recovery(self) -> None:
        """Stop the DBOS threads that poll its file for workflows to start.

        Only workflows of an earlier process are started that way. The threads cause most of the CPU
        time of an idle hub.
        """
        for event in self._dbos.background_thread_stop_events:
            event.set()
        self._dbos._background_jobs_stop_event.set()  # as DBOS's destroy() does
        self._is_recovering = False


def _is_unfinished(status: WorkflowStatus) -> bool:
    return status.status in _UNFINISHED


def _workflow_ids(states: list[str], app_version: str | None = None) -> list[str]:
    found = DBOS.list_workflows(
        status=states, app_version=app_version, limit=1000, load_input=False, load_output=False
    )
    return [workflow.workflow_id for workflow in found]


def _use_write_ahead_log(path: Path) -> None:
    # The mode is stored in the file. By default DBOS uses a rollback journal, three times slower.
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()
