"""Runs the registry's jobs as durable workflows of named steps.

Each attempt of a job is a workflow, and its finished steps are recorded (step_records). So a worker
goes on with the job of a dead worker at its first unfinished step. If the records are lost, jobs
start from the beginning: every step may run twice.

A job needs a turn to run. It gives it up when it is over, when it has to be repeated later, and
between steps when another job should run first (registry/jobs/order.py). In the last case its
thread waits for the next turn.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from dbos import WorkflowStatus

from deltahub.registry.data_folder import WORKER_LOCK
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import JobFailed, StorageFull, Unavailable
from deltahub.registry.jobs import owners, queue
from deltahub.registry.leases import lease
from deltahub.registry.maintenance.scrub import schedule
from deltahub.registry.registry import Registry
from deltahub.registry.upgrades.running import advance
from deltahub.workers.attempts import Attempt, AttemptRunner, EngineFailed, Kind
from deltahub.workers.settings import WorkerSettings
from deltahub.workers.step_records.file import EngineFileDamaged
from deltahub.workers.step_records.workflows import FINISHED, UNFINISHED, Workflows, is_unfinished

log = logging.getLogger(__name__)

CLEANUP_INTERVAL_S = 5.0
# Longest time between two queries for queued jobs, even if the database did not change.
MAX_QUERY_INTERVAL_S = 2.0
# Longest time between two looks at whether a scrub is due.
SCHEDULE_INTERVAL_S = 60.0
# Shortest time between two looks at the moves of upgrades.
ADVANCE_INTERVAL_S = 2.0
# Longest time between two looks at whether another worker has died.
DEATHS_INTERVAL_S = 1.0
# Shortest time between two signs of life.
LOOK_INTERVAL_S = 2.0


class Engine:
    """Runs jobs of one registry. One for each process, because DBOS is global."""

    def __init__(
        self,
        registry: Registry,
        settings: WorkerSettings,
        kinds: Mapping[str, Kind],
        worker_id: str,
        mark_looked: Callable[[], None],
    ) -> None:
        """worker_id: of this process alone. With PostgreSQL, its lease of WORKER_LOCK has this id.

        mark_looked: notes that the worker has looked for jobs.
        """
        self._registry = registry
        self._settings = settings
        self._worker_id = worker_id
        self._mark_looked = mark_looked
        self._runner = AttemptRunner(registry, settings, kinds, worker_id)
        self._workflows = Workflows(registry, worker_id, self._run)
        # With SQLite there is one worker, so that every other one is dead from the start.
        self._is_alone = registry.db.is_sqlite
        self._is_clean = False  # the records had no workflow, and none was started since
        self._cleaned_at = 0.0
        # Lane -> version of the database at the query after which no job was left that may run, and
        # when that was.
        self._drained: dict[str, tuple[int | None, float]] = {}
        self._looked_at = 0.0
        self._scheduled_at = 0.0
        self._advanced_at = 0.0
        self._released_at: float | None = None

    def start(self) -> None:
        """Start DBOS. run() goes on with the jobs that dead workers left."""
        self._workflows.start()
        self._release_jobs_of_dead()

    def run(self, stop: threading.Event) -> None:
        """Start jobs as their turn comes until `stop` is set; then wait for running steps.

        Waits at most stop_grace_s seconds. The process must end after this, because the threads of
        unfinished jobs block for ever. Other workers, or the next one, resume these jobs.
        EngineFileDamaged: the records cannot be used, and the next worker starts unfinished jobs
        from the beginning.
        """
        while not stop.wait(self._settings.poll_interval_s):
            try:
                self._release_jobs_of_dead()
                self._start_ready()
                self._clean_up()
                self._schedule()
                self._mark_alive()
            except (StorageFull, Unavailable) as error:
                log.warning("looking for jobs again later: %s", error)
            except EngineFileDamaged as error:
                self._runner.damage = error
            if self._runner.damage is not None:
                self._workflows.set_aside(self._runner.damage)
                raise self._runner.damage
        self._runner.is_stopping.set()
        deadline = time.monotonic() + self._settings.stop_grace_s
        while self._runner.n_steps and time.monotonic() < deadline:
            time.sleep(0.02)
        self._leave()

    def _run(self, job_id: str, number: int, lane: str, steps_version: int) -> None:
        self._runner.run(Attempt(job_id, number, lane, steps_version))

    def _release_jobs_of_dead(self) -> None:
        """Free the jobs of dead workers, so that live ones take them."""
        now = time.monotonic()
        if self._released_at is not None:
            if self._is_alone or now - self._released_at < DEATHS_INTERVAL_S:
                return
        with self._registry.db.read() as session:
            has_dead = not owners.ids_of(session) <= self._live_workers(session)
        if has_dead:
            with self._registry.db.write_beside() as session:
                # In one transaction: a worker that renews its lease meanwhile keeps its jobs.
                if not self._is_alone:
                    lease.end_dead(session, WORKER_LOCK)
                n_freed = owners.release_dead(session, self._live_workers(session))
            if n_freed:
                log.warning("%d unfinished jobs of dead workers go on", n_freed)
        self._released_at = now

    def _live_workers(self, session: ReadSession) -> set[str]:
        if self._is_alone:
            return {self._worker_id}
        return {each.id for each in lease.live(session, WORKER_LOCK)}

    def _start_ready(self) -> None:
        for lane in self._runner.turns.lanes:
            self._start_ready_of(lane)

    def _start_ready_of(self, lane: str) -> None:
        while self._runner.turns.n_free(lane) > 0:
            # Asked before the query, so that changes after the query give another version.
            version = self._registry.db.version_of_jobs()
            now = time.monotonic()
            drained_version, queried_at = self._drained.get(lane, (None, 0.0))
            is_fresh = now - queried_at < MAX_QUERY_INTERVAL_S
            if version is not None and version == drained_version and is_fresh:
                return
            with self._registry.db.read() as session:
                is_drained = not owners.has_orphan(session, lane) and not queue.next_queued(
                    session, lane=lane, worker_id=self._worker_id
                )
            self._drained[lane] = version if is_drained else None, now
            if is_drained:
                return
            with self._registry.db.write_beside() as session:
                job = owners.take_orphan(session, lane, self._worker_id) or queue.take_next(
                    session, lane, self._worker_id
                )
            if job is None:
                return  # another worker was faster
            self._go_on(job)

    def _go_on(self, job: Job) -> None:
        """Give the attempt a turn, and run, resume or end it by the state of its workflow."""
        attempt = self._runner.attempt_of(job)
        expected, _ = self._runner.snapshot()
        self._runner.turns.grant(attempt.workflow_id, attempt.lane)
        if attempt in expected:
            return  # its thread waits here
        self._runner.expect(attempt)
        self._is_clean = False
        try:
            status = self._workflows.status(attempt.workflow_id)
            if job.n_deaths >= self._settings.max_attempts:
                self._give_up(attempt)
            elif status is None:
                arguments = (attempt.job_id, attempt.number, attempt.lane, attempt.steps_version)
                self._workflows.begin(attempt.workflow_id, arguments)
            elif is_unfinished(status):
                self._workflows.resume(attempt.workflow_id)
            else:
                self._end_without_result(attempt, status)
        except BaseException:
            self._runner.forget(attempt)  # _clean_up tries again
            raise

    def _give_up(self, attempt: Attempt) -> None:
        message = f"the worker died {self._settings.max_attempts} times in this job"
        with self._registry.db.write_beside() as session:
            queue.mark_failed(session, attempt.job_id, JobFailed.code, message)
        self._runner.forget(attempt)

    def _end_without_result(self, attempt: Attempt, status: WorkflowStatus) -> None:
        """Repeat a job whose workflow ended without writing a result."""
        message = f"the job engine stopped without a result ({status.status})"
        with self._registry.db.write_beside() as session:
            self._runner.postpone(session, attempt, EngineFailed(message))
        self._runner.forget(attempt)

    def _clean_up(self) -> None:
        """Delete workflows that are over, and take care of own jobs that no thread runs."""
        now = time.monotonic()
        if self._is_clean or now - self._cleaned_at < CLEANUP_INTERVAL_S:
            return
        self._cleaned_at = now
        expected, in_thread = self._runner.snapshot()
        # After the snapshot: an attempt that ended before it has written its end into the row.
        with self._registry.db.read() as session:
            begun = queue.begun(session)
            live = self._live_workers(session)
        for job in begun:
            if job.worker_id != self._worker_id:
                continue
            attempt = self._runner.attempt_of(job)
            if attempt in expected and attempt not in in_thread:
                status = self._workflows.status(attempt.workflow_id)
                if status is not None and not is_unfinished(status):
                    self._end_without_result(attempt, status)
            elif attempt not in expected and job.state == "running":
                self._go_on(job)
        self._delete_workflows({self._runner.attempt_of(job).workflow_id for job in begun}, live)

    def _delete_workflows(self, needed: set[str], live: set[str]) -> None:
        """Delete workflows that ended or whose jobs are over, except those of other live workers.

        needed: the workflows of jobs that are not over. live: the workers that live.
        """
        others = live - {self._worker_id}
        finished = self._workflows.listed(FINISHED)
        unfinished = self._workflows.listed(UNFINISHED)
        expected, in_thread = self._runner.snapshot()
        kept = needed | {attempt.workflow_id for attempt in expected}
        abandoned = [each for each in unfinished if each.workflow_id not in kept]
        self._workflows.delete(
            each.workflow_id for each in (*finished, *abandoned) if each.executor_id not in others
        )
        for worker_id in self._workflows.worker_ids():
            if worker_id not in live and worker_id != self._worker_id:
                self._workflows.forget_worker(worker_id)
        if self._is_alone:
            if expected == in_thread:
                self._workflows.end_polling()
            self._is_clean = not (finished or unfinished)

    def _schedule(self) -> None:
        """Enqueue the hub's own work when it is due, and begin approved moves of upgrades."""
        if time.monotonic() - self._advanced_at >= ADVANCE_INTERVAL_S:
            self._advanced_at = time.monotonic()
            self._advance()
        interval_s = schedule.interval_s(self._registry)
        now = time.monotonic()
        if interval_s is None or now < self._scheduled_at + min(interval_s, SCHEDULE_INTERVAL_S):
            return
        self._scheduled_at = now
        schedule.enqueue_if_due(self._registry)

    def _advance(self) -> None:
        try:
            advance(self._registry)
        except (StorageFull, Unavailable):
            raise
        except Exception:  # an odd row of an upgrade must not keep all other jobs from running
            log.exception("the moves of upgrades are looked at again later")

    def _mark_alive(self) -> None:
        now = time.monotonic()
        # While the end of a job cannot be written, its turn is lost.
        if now - self._looked_at >= LOOK_INTERVAL_S and not self._runner.n_unwritten:
            self._looked_at = now
            self._mark_looked()

    def _leave(self) -> None:
        """Give up the jobs that are not over, so that others go on with them at once."""
        try:
            with self._registry.db.write_beside() as session:
                owners.release(session, self._worker_id)
        except (StorageFull, Unavailable) as error:
            log.warning("unfinished jobs go on when this worker counts as dead: %s", error)
