"""Attempts: each waits for a turn, runs a job's function and writes the end into the job's row."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, TypeVar

from dbos import DBOS

from deltahub.registry.db.session import WriteSession, fenced
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import JobFailed, RegistryError, StorageFull, Unavailable
from deltahub.registry.jobs import order, owners, queue
from deltahub.registry.jobs.owners import JobLost
from deltahub.registry.jobs.transient import code_of, is_transient
from deltahub.registry.registry import Registry
from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.context import JobContext
from deltahub.workers.failures import JobCancelled, StepFailed
from deltahub.workers.settings import WorkerSettings
from deltahub.workers.step_records.file import EngineFileDamaged, engine_errors
from deltahub.workers.turns import Turns

log = logging.getLogger(__name__)

T = TypeVar("T")
JobFunction = Callable[[JobContext, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    steps_version: increase it when the order or the results of its steps change. Jobs of this kind
    that older code began then start from the beginning, instead of replaying steps that no longer
    fit. divides_itself: its steps use threads by themselves, so that linear algebra gets one.
    """

    run: JobFunction
    steps_version: int = 1
    divides_itself: bool = False


# Jobs of a lane that have made room for others and keep their thread and memory. With so many, jobs
# run to their end.
MAX_WAITING = 8
# Longest time between two looks at the row of a job that waits for its turn.
_LOOK_INTERVAL_S = 1.0
# Longest pause before a job's end is written again.
_WRITE_PAUSE_MAX_S = 15.0


# How an attempt ends, for those who count: a repeated job begins another attempt later.
_OUTCOMES = ("done", "failed", "cancelled", "repeated")


class EngineFailed(Exception):
    """The engine could not run or record a step. The job is repeated from the beginning."""

    code = JobFailed.code


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job, which one workflow runs. steps_version: of its kind."""

    job_id: str
    number: int
    lane: str
    steps_version: int

    @property
    def workflow_id(self) -> str:
        return f"{self.job_id}-{self.number}-{self.steps_version}"


class AttemptRunner:
    """Runs attempts, each in a thread of DBOS."""

    def __init__(
        self,
        registry: Registry,
        settings: WorkerSettings,
        kinds: Mapping[str, Kind],
        worker_id: str,
    ) -> None:
        self._registry = registry
        self._worker_id = worker_id
        self._settings = settings
        self._kinds = kinds
        # One cache of decoded blocks for all jobs of the process.
        self._reader = FileReader(registry)
        self.turns = Turns(settings.n_turns)
        self.is_stopping = threading.Event()
        self.n_steps = 0  # steps that run now
        self.n_unwritten = 0  # attempts whose end the database does not take
        self.damage: EngineFileDamaged | None = None  # found by an attempt
        self._lock = threading.Lock()
        # Attempts that DBOS runs or will run here; those that a thread runs; and how many of these
        # have made room for others.
        self._expected: set[Attempt] = set()
        self._in_thread: set[Attempt] = set()
        self._n_waiting = dict.fromkeys(settings.n_turns, 0)
        # Of attempts that run; one that waits for its turn has none.
        self._processes: dict[Attempt, ComputeProcess] = {}
        for kind in kinds:
            for outcome in _OUTCOMES:
                registry.measures.job_seconds.expect((kind, outcome))

    def attempt_of(self, job: Job) -> Attempt:
        """The job's attempt now, by today's steps."""
        kind = self._kinds.get(job.kind)
        version = 0 if kind is None else kind.steps_version
        return Attempt(job.id, job.attempts, job.lane, version)

    def expect(self, attempt: Attempt) -> None:
        """Note that DBOS will run the attempt here."""
        with self._lock:
            self._expected.add(attempt)

    def forget(self, attempt: Attempt) -> None:
        """Note that DBOS runs the attempt no more, and free its turn."""
        with self._lock:
            self._expected.discard(attempt)
            self._in_thread.discard(attempt)
            self._processes.pop(attempt, None)
        self.turns.release(attempt.workflow_id)

    def snapshot(self) -> tuple[set[Attempt], set[Attempt]]:
        """The attempts that DBOS runs or will run here, and those of them that a thread runs."""
        with self._lock:
            return set(self._expected), set(self._in_thread)

    def run(self, attempt: Attempt) -> None:
        """Run an attempt once it has a turn; returns when its end is written."""
        with self._lock:
            self._expected.add(attempt)
            self._in_thread.add(attempt)
        try:
            with fenced(partial(self._require_ownership, attempt.job_id)):
                if self._has_turn(attempt):
                    self._run_to_result(attempt)
        except JobLost as error:
            log.warning("%s", error)
            _park()
        finally:
            self.forget(attempt)

    def _require_ownership(self, job_id: str, session: WriteSession) -> None:
        owners.require_worker(session, job_id, self._worker_id)

    def postpone(self, session: WriteSession, attempt: Attempt, error: Exception) -> None:
        """Queue the job again from its beginning, after a pause."""
        queue.postpone(
            session,
            attempt.job_id,
            attempt.number,
            (_code(error), str(error)),
            longest_pause_s=self._settings.retry_pause_max_s,
            patience_s=self._settings.patience_s,
        )

    def _has_turn(self, attempt: Attempt) -> bool:
        """Wait for a turn; False if the job is over, or goes on in another attempt."""
        while not self.turns.wait(attempt.workflow_id, _LOOK_INTERVAL_S):
            self._park_if_stopping()
            try:
                with self._registry.db.read() as session:
                    job = session.get(Job, attempt.job_id)
            except (StorageFull, Unavailable):
                continue
            if job is None or job.state not in queue.ACTIVE or self.attempt_of(job) != attempt:
                return False
            if job.worker_id not in (None, self._worker_id):
                return False
        return True

    def _run_to_result(self, attempt: Attempt) -> None:
        started_at = time.monotonic()
        kind_name = "unknown"
        try:
            with self._registry.db.read() as session:
                job = session.get(Job, attempt.job_id)
            if job is None or job.state != "running" or self.attempt_of(job) != attempt:
                return
            kind = self._kinds.get(job.kind)
            kind_name = "unknown" if kind is None else job.kind
            if kind is None:
                raise StepFailed(JobFailed.code, f"this version knows no job of kind {job.kind!r}")
            run_step = partial(self._run_step, attempt)
            child = ComputeProcess(
                self._registry,
                self._settings,
                job.id,
                self._worker_id,
                divides_itself=kind.divides_itself,
            )
            self._processes[attempt] = child
            with child:
                context = JobContext(self._registry, self._reader, job.id, run_step, child)
                result = kind.run(context, dict(job.payload))
        except JobCancelled:
            self._write(
                lambda session: queue.mark_cancelled(session, attempt.job_id, attempt.number)
            )
            outcome = "cancelled"
        except Exception as error:
            outcome = self._end_with_error(attempt, error)
        else:
            self._write(
                lambda session: queue.mark_done(session, attempt.job_id, result, attempt.number)
            )
            outcome = "done"
            duration_s = time.monotonic() - started_at
            log.info("job=%s kind=%s done duration_s=%.3f", job.id, job.kind, duration_s)
        self._registry.measures.job_seconds.add((kind_name, outcome), time.monotonic() - started_at)

    def _end_with_error(self, attempt: Attempt, error: Exception) -> str:
        """Write down that an attempt failed: the job is "repeated" later, or has "failed"."""
        if isinstance(error, EngineFileDamaged):
            self.damage = error
        is_passing = isinstance(error, EngineFileDamaged | EngineFailed) or is_transient(error)
        if is_passing or (isinstance(error, StepFailed) and error.is_transient):
            log.warning("job=%s is repeated later code=%s: %s", attempt.job_id, _code(error), error)
            self._write(lambda session: self.postpone(session, attempt, error))
            return "repeated"
        if not isinstance(error, StepFailed):
            log.error("job=%s broke between steps", attempt.job_id, exc_info=error)
        log.warning("job=%s failed code=%s: %s", attempt.job_id, _code(error), error)
        self._write(
            lambda session: queue.mark_failed(
                session, attempt.job_id, _code(error), str(error), attempt.number
            )
        )
        return "failed"

    def _write(self, change: Callable[[WriteSession], object]) -> None:
        """Write the end of an attempt, as soon as the database takes it.

        Until then the job keeps its turn, because the next job could not write either.
        """
        if self._try_write(change):
            return
        with self._lock:
            self.n_unwritten += 1
        pause_s = 0.5
        while True:
            self._park_if_stopping()
            time.sleep(pause_s)
            if self._try_write(change):
                break
            pause_s = min(pause_s * 2, _WRITE_PAUSE_MAX_S)
        with self._lock:
            self.n_unwritten -= 1

    def _try_write(self, change: Callable[[WriteSession], object]) -> bool:
        try:
            with self._registry.db.write_beside() as session:
                change(session)
        except (StorageFull, Unavailable) as error:
            log.warning("a job's end is written again in a moment: %s", error)
            return False
        return True

    def _run_step(self, attempt: Attempt, name: str, function: Callable[[], T]) -> T:
        self._make_room(attempt)
        self._park_if_stopping()
        with self._lock:
            self.n_steps += 1

        def run() -> T:
            try:
                return function()
            except BaseException:
                self._park_if_lost(attempt)
                raise

        try:
            with engine_errors():
                return DBOS.run_step({"name": name}, run)
        except (StepFailed, JobCancelled, EngineFileDamaged, StorageFull, Unavailable):
            raise
        except Exception as error:
            raise EngineFailed(f"the job engine could not run step {name!r}: {error}") from error
        finally:
            with self._lock:
                self.n_steps -= 1

    def _make_room(self, attempt: Attempt) -> None:
        """Between two steps: let another job run first if the order says so."""
        workflow_id = attempt.workflow_id
        is_short = self.turns.held_s(workflow_id) < self._settings.turn_s
        if is_short or self.turns.n_free(attempt.lane) > 0:
            return
        with self._lock:
            if self._n_waiting[attempt.lane] >= MAX_WAITING:
                return
            self._n_waiting[attempt.lane] += 1
        try:
            with self._registry.db.read() as session:
                if not order.should_make_room(session, attempt.job_id):
                    return
            # Before the row is queued again: else the turn that it gets then would be released.
            self.turns.release(workflow_id)
            if (process := self._processes.get(attempt)) is not None:
                process.kill()  # the next step starts another
            with self._registry.db.write_beside() as session:
                is_queued = queue.make_room(session, attempt.job_id)
            if not is_queued or not self._has_turn(attempt):
                raise JobCancelled("cancelled")
        except (StorageFull, Unavailable) as error:
            log.info("job=%s makes no room: %s", attempt.job_id, error)
            self.turns.grant(workflow_id, attempt.lane)
        finally:
            with self._lock:
                self._n_waiting[attempt.lane] -= 1

    def _park_if_lost(self, attempt: Attempt) -> None:
        """Record no error of a step that failed because another worker has the job."""
        try:
            with self._registry.db.read() as session:
                job = session.get(Job, attempt.job_id)
        except (StorageFull, Unavailable):
            return  # then nothing can be recorded either
        if job is not None and job.state in queue.ACTIVE and job.worker_id != self._worker_id:
            log.warning("job=%s goes on in another worker", attempt.job_id)
            _park()

    def _park_if_stopping(self) -> None:
        if self.is_stopping.is_set():
            _park()


def _park() -> Never:
    """Block until the process ends.

    An exception would end the workflow for good. This leaves it unfinished, so that the next worker
    resumes it.
    """
    while True:
        threading.Event().wait()


def _code(error: Exception) -> str:
    if isinstance(error, StepFailed | EngineFailed | EngineFileDamaged | RegistryError):
        return error.code
    return code_of(error) if is_transient(error) else JobFailed.code
