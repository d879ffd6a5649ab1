"""Runs the registry's jobs as durable DBOS workflows of named steps.

Each attempt of a job is a workflow. DBOS records finished steps in a file of its own, so that a
worker resumes a job at its first unfinished step. If that file is lost, jobs start from the
beginning: every step may run twice.

A job needs a turn to run. It gives it up when it is over, when it has to be repeated later, and
between steps when another job should run first (registry/jobs/order.py). In the last case its
thread waits for the next turn.
"""

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowStatus
from sqlalchemy import URL

from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import JobFailed, StorageFull, Unavailable
from deltahub.registry.jobs import health, queue
from deltahub.registry.maintenance.scrub import schedule
from deltahub.registry.registry import Registry
from deltahub.workers import engine_file
from deltahub.workers.attempts import Attempt, AttemptRunner, EngineFailed, Kind
from deltahub.workers.engine_file import EngineFileDamaged, engine_errors
from deltahub.workers.serializer import JsonSerializer
from deltahub.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

# Increase it when workflows get other arguments: unfinished jobs then start from the beginning.
# The steps of each kind of job have a version of their own (attempts.Kind).
WORKFLOW_VERSION = "5"
# DBOS needs an id that is unique among live processes, and resumes workflows of the same id. A
# constant is both, because the lock of the data folder allows one worker.
EXECUTOR_ID = "worker"
CLEANUP_INTERVAL_S = 5.0
# Longest time between two queries for queued jobs, even if the database did not change.
MAX_QUERY_INTERVAL_S = 2.0
# Longest time between two looks at whether a scrub is due.
SCHEDULE_INTERVAL_S = 60.0
_SEEN_INTERVAL_S = 2.0
_UNFINISHED = ["PENDING", "ENQUEUED", "DELAYED"]
_FINISHED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class Engine:
    """Runs the jobs of one registry. One for each process, because DBOS is global."""

    def __init__(
        self, registry: Registry, settings: WorkerSettings, kinds: Mapping[str, Kind]
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._runner = AttemptRunner(registry, settings, kinds)
        self._path = registry.data_dir / engine_file.DATABASE_NAME
        self._is_recovering = True  # DBOS may still resume workflows of an earlier process
        self._is_clean = False  # the DBOS file had no workflow, and none was started since
        self._cleaned_at = 0.0
        # Lane -> version of the database at the query after which no queued job was left, and when
        # that was.
        self._drained: dict[str, tuple[int | None, float]] = {}
        self._seen_at = 0.0
        self._scheduled_at = 0.0

    def start(self) -> None:
        """Start DBOS, and resume the jobs that an earlier process left unfinished."""
        engine_file.prepare(self._path)
        try:
            self._launch()
        except (StorageFull, Unavailable):
            raise
        except Exception as error:
            # The check of the file finds no missing table, for example.
            DBOS.destroy(destroy_registry=True)
            engine_file.set_aside(self._path, error)
            engine_file.prepare(self._path)
            self._launch()
        self._resume()

    def run(self, stop: threading.Event) -> None:
        """Start jobs as their turn comes until `stop` is set; then wait for running steps.

        Waits at most stop_grace_s seconds. The process must end after this, because the threads of
        unfinished jobs block for ever. The next worker resumes these jobs. EngineFileDamaged: the
        file was set aside, and the next worker starts unfinished jobs from the beginning.
        """
        while not stop.wait(self._settings.poll_interval_s):
            try:
                self._start_ready()
                self._clean_up()
                self._schedule()
                self._mark_seen()
            except (StorageFull, Unavailable) as error:
                log.warning("looking for jobs again later: %s", error)
            except EngineFileDamaged as error:
                self._runner.damage = error
            if self._runner.damage is not None:
                engine_file.set_aside(self._path, self._runner.damage)
                raise self._runner.damage
        self._runner.is_stopping.set()
        deadline = time.monotonic() + self._settings.stop_grace_s
        while self._runner.n_steps and time.monotonic() < deadline:
            time.sleep(0.02)
        health.mark_gone(self._registry)

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "deltahub",
            "system_database_url": _sqlite_url(self._path),
            "application_version": WORKFLOW_VERSION,
            "executor_id": EXECUTOR_ID,
            "serializer": JsonSerializer(),
            "enable_otlp": False,
            "log_level": "WARNING",
            # Notifications and schedules are not used: their threads poll as rarely as possible.
            "notification_listener_polling_interval_sec": 30.0,
            "scheduler_polling_interval_sec": 3600.0,
        }
        self._dbos = DBOS(config=config)

        def job(job_id: str, number: int, lane: str, steps_version: int) -> None:
            self._runner.run(Attempt(job_id, number, lane, steps_version))

        attempts = self._settings.max_attempts
        self._workflow = DBOS.workflow(name="job", max_recovery_attempts=attempts)(job)
        with engine_errors():
            DBOS.launch()

    def _resume(self) -> None:
        """Resume, restart or end the jobs that an earlier process began."""
        with engine_errors():
            found = DBOS.list_workflows(status=_UNFINISHED, load_input=False, load_output=False)
            unfinished = {w.workflow_id for w in found if w.app_version == WORKFLOW_VERSION}
            outdated = [w.workflow_id for w in found if w.app_version != WORKFLOW_VERSION]
            if outdated:
                DBOS.delete_workflows(outdated)
        with self._registry.db.read() as session:
            begun = queue.begun(session)
        for job in begun:
            attempt = self._runner.attempt_of(job)
            if attempt.workflow_id in unfinished:
                self._runner.expect(attempt)  # DBOS resumes it by itself
                if job.state == "running":
                    self._runner.turns.grant(attempt.workflow_id, attempt.lane)
            elif job.state == "running":
                self._restart(job)

    def _restart(self, job: Job) -> None:
        """Start a running job that no thread runs, or end it by the state of its workflow."""
        attempt = self._runner.attempt_of(job)
        with engine_errors():
            status = DBOS.get_workflow_status(attempt.workflow_id)
        if status is not None and not _is_unfinished(status):
            self._end_without_result(attempt, status)
        else:
            self._start_workflow(attempt)

    def _start_ready(self) -> None:
        for lane in (queue.STORE, queue.COMPUTE):
            self._start_ready_of(lane)

    def _start_ready_of(self, lane: str) -> None:
        while self._runner.turns.n_free(lane) > 0:
            version = self._registry.db.version()  # before the query: later writes change it
            now = time.monotonic()
            drained_version, queried_at = self._drained.get(lane, (None, 0.0))
            is_fresh = now - queried_at < MAX_QUERY_INTERVAL_S
            if version is not None and version == drained_version and is_fresh:
                return
            with self._registry.db.read() as session:
                is_drained = not queue.next_queued(session, lane=lane)
            self._drained[lane] = version if is_drained else None, now
            if is_drained:
                return
            with self._registry.db.write() as session:
                job = queue.take_next(session, lane)
            if job is None:
                continue
            attempt = self._runner.attempt_of(job)
            expected, _ = self._runner.snapshot()
            if attempt in expected:
                self._runner.turns.grant(attempt.workflow_id, lane)
            else:
                self._start_workflow(attempt)

    def _start_workflow(self, attempt: Attempt) -> None:
        """Give an attempt a turn, and start its workflow."""
        self._runner.turns.grant(attempt.workflow_id, attempt.lane)
        self._runner.expect(attempt)
        self._is_clean = False
        try:
            with engine_errors(), SetWorkflowID(attempt.workflow_id):
                arguments = (attempt.job_id, attempt.number, attempt.lane, attempt.steps_version)
                DBOS.start_workflow(self._workflow, *arguments)
        except BaseException:
            self._runner.forget(attempt)  # _clean_up starts it again
            raise

    def _end_without_result(self, attempt: Attempt, status: WorkflowStatus) -> None:
        """Fail or repeat a job whose workflow ended without writing a result."""
        if status.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
            message = f"the worker died {self._settings.max_attempts} times in this job"
            with self._registry.db.write() as session:
                queue.mark_failed(session, attempt.job_id, JobFailed.code, message)
        else:
            message = f"the job engine stopped without a result ({status.status})"
            with self._registry.db.write() as session:
                self._runner.postpone(session, attempt, EngineFailed(message))
        self._runner.forget(attempt)

    def _clean_up(self) -> None:
        """Delete finished workflows, and take care of running jobs that no thread runs."""
        now = time.monotonic()
        if self._is_clean or now - self._cleaned_at < CLEANUP_INTERVAL_S:
            return
        self._cleaned_at = now
        expected, in_thread = self._runner.snapshot()
        # After the snapshot: an attempt that ended before it has written its end into the row.
        with self._registry.db.read() as session:
            begun = queue.begun(session)
        for job in begun:
            attempt = self._runner.attempt_of(job)
            if attempt in expected and attempt not in in_thread:
                with engine_errors():
                    status = DBOS.get_workflow_status(attempt.workflow_id)
                if status is not None and not _is_unfinished(status):
                    self._end_without_result(attempt, status)
            elif attempt not in expected and job.state == "running":
                self._restart(job)
        with engine_errors():
            unfinished = _workflow_ids(_UNFINISHED, app_version=WORKFLOW_VERSION)
            finished = _workflow_ids(_FINISHED)
            if finished:
                DBOS.delete_workflows(finished)
        _, in_thread = self._runner.snapshot()
        n_unstarted = len(set(unfinished) - {attempt.workflow_id for attempt in in_thread})
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

    def _schedule(self) -> None:
        """Enqueue the hub's own work when it is due."""
        interval_s = schedule.interval_s(self._registry)
        now = time.monotonic()
        if interval_s is None or now < self._scheduled_at + min(interval_s, SCHEDULE_INTERVAL_S):
            return
        self._scheduled_at = now
        schedule.enqueue_if_due(self._registry)

    def _mark_seen(self) -> None:
        now = time.monotonic()
        # While the end of a job cannot be written, its turn is lost.
        if now - self._seen_at >= _SEEN_INTERVAL_S and not self._runner.n_unwritten:
            self._seen_at = now
            health.mark_seen(self._registry)


def _is_unfinished(status: WorkflowStatus) -> bool:
    return status.status in _UNFINISHED


def _workflow_ids(states: list[str], app_version: str | None = None) -> list[str]:
    found = DBOS.list_workflows(
        status=states, app_version=app_version, limit=1000, load_input=False, load_output=False
    )
    return [workflow.workflow_id for workflow in found]


def _sqlite_url(path: Path) -> str:
    """A URL, whose path may have characters that mean something in URLs."""
    return URL.create("sqlite", database=str(path)).render_as_string()
