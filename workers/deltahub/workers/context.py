"""The functions that a running job may use: durable steps, progress, and cancellation."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from deltahub.codecs.errors import CodecError
from deltahub.methods.errors import MethodError
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import JobFailed, RegistryError
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.owners import JobLost
from deltahub.registry.jobs.transient import code_of, is_transient
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError
from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.failures import JobCancelled, StepFailed

log = logging.getLogger(__name__)

T = TypeVar("T")


class StepRunner(Protocol):
    """Runs a function once, and records its result under a name."""

    def __call__(self, name: str, function: Callable[[], T]) -> T: ...


# Pauses in seconds before a step is tried again within a job's turn. If the error stays, the job is
# queued again and other jobs run meanwhile.
RETRY_DELAYS_S = (0.2, 1.0)
# Shortest time between two progress reports of the same stage.
REPORT_INTERVAL_S = 0.5


class JobContext:
    """One run of one job. All side effects of a job happen inside `step`."""

    def __init__(
        self,
        registry: Registry,
        reader: FileReader,
        job_id: str,
        run_step: StepRunner,
        compute_process: ComputeProcess | None = None,
    ) -> None:
        self.registry = registry
        self.reader = reader
        self.job_id = job_id
        self._run_step = run_step
        self._compute_process = compute_process
        self._reported_at = 0.0
        self._stage = ""
        self._step: tuple[int, int] | None = None

    def step(self, name: str, function: Callable[[], T]) -> T:
        """Return the result of `function`, from now or from before a restart.

        The result must be plain JSON. A step that a crash interrupted runs again, so `function`
        must be idempotent. Raises StepFailed for its errors, and JobCancelled.
        """
        return self._run_step(name, lambda: self._attempt(name, function))

    def compute(
        self, name: str, step: str, arguments: dict[str, Any], share: tuple[float, float] = (0, 1)
    ) -> Any:
        """A step that runs in the compute process: its result, from now or from before a restart.

        step: `module:function` (compute/context.py). arguments: plain JSON. share: the part of the
        job's work that this step is, from and to a fraction of it.
        """
        process = self._compute_process
        assert process is not None, "a job that computes runs in the engine"
        begin, end = share

        def listen(stage: str, done: int, total: int) -> None:
            self.report(stage, done, total, begin + (end - begin) * done / max(total, 1))

        def run() -> Any:
            self.report(name, 0, 0, begin)
            return process.run(
                step,
                arguments,
                on_progress=listen,
                on_log=self.log,
                check_cancel=self.check_cancel,
            )

        return self.step(name, run)

    def compute_parts(
        self, step: str, arguments: dict[str, Any], share: tuple[float, float]
    ) -> list[dict[str, Any]]:
        """Do the same for a step that does a part of its work at a time: its results, in order.

        It gets the number at which a part begins as `first`, and returns that of the next part as
        `next`, None after the last one.
        """
        told = []
        name = step.rpartition(":")[2]
        first: int | None = 0
        while first is not None:
            done = self.compute(f"{name} from {first}", step, arguments | {"first": first}, share)
            told.append(done)
            first = done["next"]
        return told

    @property
    def peak_bytes(self) -> int:
        """Memory that the compute process took at most, in this attempt."""
        return 0 if self._compute_process is None else self._compute_process.peak_bytes

    def tell_memory(self) -> None:
        """A step that logs the memory that the compute process took."""
        told = f"the compute process took at most {self.peak_bytes / 1e6:,.0f} MB of memory"
        self.step("tell the memory", lambda: self.log(told))

    def log(self, text: str) -> None:
        """Append a line to the job's log."""
        with self.registry.db.write_beside() as session:
            queue.add_line(session, self.job_id, text)

    def _attempt(self, name: str, function: Callable[[], T]) -> T:
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                self.check_cancel()
                return function()
            except (JobCancelled, JobLost, StepFailed):
                raise
            except Exception as error:
                if not is_transient(error):
                    raise self._failure(name, error) from error
                if delay_s is None:
                    raise StepFailed(code_of(error), str(error), is_transient=True) from error
                log.warning(
                    "job=%s step=%s retried in %.1f s: %s", self.job_id, name, delay_s, error
                )
                time.sleep(delay_s)
        raise AssertionError("the last try returns or raises")

    def _failure(self, name: str, error: Exception) -> StepFailed:
        if isinstance(error, RegistryError | CodecError | StoreError | MethodError):
            return StepFailed(error.code, str(error))
        # A bug or a failing machine: the job stops, and the log has the traceback.
        log.error("job=%s step=%s broke", self.job_id, name, exc_info=error)
        return StepFailed(JobFailed.code, f"{type(error).__name__}: {error}")

    def check_cancel(self) -> None:
        """Raise JobCancelled if the job was cancelled. Long steps call this now and then."""
        with self.registry.db.read() as session:
            if queue.is_cancel_asked(session, self.job_id):
                raise JobCancelled("cancelled")

    def begin_step(self, number: int, n_steps: int) -> None:
        """Tell whoever waits that the job is at its step `number`, from 1, of `n_steps`. These are
        the steps that its documentation lists, each of which may be many durable ones.
        """
        self._step = number, n_steps

    def report(
        self, stage: str, done_bytes: int, total_bytes: int, fraction: float | None = None
    ) -> None:
        """Write progress to the job's row, at most once in 0.5 s a stage. Raises JobCancelled.

        fraction: of the whole job that is done, if it is known.
        """
        now = time.monotonic()
        if stage == self._stage and now - self._reported_at < REPORT_INTERVAL_S:
            return
        self._stage, self._reported_at = stage, now
        with self.registry.db.write_beside() as session:
            progress = (stage, done_bytes, total_bytes, fraction, self._step)
            if not queue.report_progress(session, self.job_id, *progress):
                raise JobCancelled("cancelled")
