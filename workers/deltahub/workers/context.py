"""What a job may do while it runs: durable steps, progress, and noticing that it was cancelled."""

import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from deltahub.codecs.errors import CodecError
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import JobFailed, RegistryError, Unavailable
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError, StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


class StepRunner(Protocol):
    """Runs a function once and remembers what it returned, under a name."""

    def __call__(self, name: str, function: Callable[[], T]) -> T: ...


# Waits before another try of a step whose store did not answer, in seconds.
RETRY_DELAYS_S = (0.2, 1.0, 5.0)
# A progress row more often than this would be writing for nobody.
REPORT_INTERVAL_S = 0.5


class StepFailed(Exception):
    """A step ended in an error, now or before a restart: its stable code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobCancelled(Exception):
    """Somebody asked for the job to end; what it published so far stays true."""

    code = "cancelled"


class JobContext:
    """One run of one job. Everything that changes the world happens inside `step`."""

    def __init__(
        self, registry: Registry, reader: FileReader, job_id: str, run_step: StepRunner
    ) -> None:
        self.registry = registry
        self.reader = reader
        self.job_id = job_id
        self._run_step = run_step
        self._reported_at = 0.0
        self._stage = ""

    def step(self, name: str, function: Callable[[], T]) -> T:
        """What `function` returned, now or before a restart; it must be plain JSON.

        A step that was cut off by a crash runs again, so `function` is idempotent. Its errors come
        out as StepFailed; JobCancelled passes through.
        """
        self.check_cancel()
        return self._run_step(name, lambda: self._attempt(name, function))

    def _attempt(self, name: str, function: Callable[[], T]) -> T:
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                return function()
            except (StoreUnavailable, Unavailable) as error:
                if delay_s is None:
                    raise StepFailed(error.code, str(error)) from error
                log.warning(
                    "job=%s step=%s retried in %.1f s: %s", self.job_id, name, delay_s, error
                )
                time.sleep(delay_s)
                self.check_cancel()
            except (RegistryError, CodecError, StoreError) as error:
                raise StepFailed(error.code, str(error)) from error
            except (JobCancelled, StepFailed):
                raise
            except Exception as error:
                # A bug, or a machine that fails: the job stops, the log has the trace.
                log.exception("job=%s step=%s broke", self.job_id, name)
                raise StepFailed(JobFailed.code, f"{type(error).__name__}: {error}") from error
        raise AssertionError("the last try returns or raises")

    def check_cancel(self) -> None:
        """Raises JobCancelled once somebody asked for it; long steps call this between pieces."""
        with self.registry.db.read() as session:
            if queue.is_cancel_asked(session, self.job_id):
                raise JobCancelled("cancelled")

    def report(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Shows progress in the job's row, a few times a second at most; raises JobCancelled."""
        now = time.monotonic()
        if stage == self._stage and now - self._reported_at < REPORT_INTERVAL_S:
            return
        self._stage, self._reported_at = stage, now
        with self.registry.db.write() as session:
            if not queue.report_progress(session, self.job_id, stage, done_bytes, total_bytes):
                raise JobCancelled("cancelled")
