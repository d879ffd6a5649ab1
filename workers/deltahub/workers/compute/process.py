"""Runs steps in a compute process, and kills it when its job is cancelled.

The process loads what a job needs, such as torch, and its memory is limited. It dies with the
worker. It starts with the first step that needs it, and serves all steps of one attempt.
"""

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from deltahub.registry.errors import JobFailed
from deltahub.registry.registry import Registry
from deltahub.workers.failures import StepFailed
from deltahub.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

# Longest time between two looks at whether the job was cancelled.
CHECK_INTERVAL_S: Final = 0.25
# Libraries of linear algebra start so many threads by themselves.
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Listener = Callable[[str, int, int], None]
"""listener(stage, done, total)"""


class ComputeProcess:
    """The compute process of one attempt of a job."""

    def __init__(
        self,
        registry: Registry,
        settings: WorkerSettings,
        job_id: str,
        worker_id: str | None = None,
        *,
        divides_itself: bool = False,
    ) -> None:
        """worker_id: the worker that the job must belong to whenever the process writes.

        divides_itself: as in Kind.
        """
        self._registry = registry
        self._worker_id = worker_id
        self._settings = settings
        self._job_id = job_id
        self._divides_itself = divides_itself
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.peak_bytes = 0  # resident memory of the process at most, as far as steps have ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def run(
        self,
        step: str,
        arguments: dict[str, Any],
        *,
        on_progress: Listener,
        on_log: Callable[[str], None],
        check_cancel: Callable[[], None],
    ) -> Any:
        """The step's result; StepFailed for its errors.

        step: `module:function` (context.Step). check_cancel is called several times a second; if it
        raises, the process is killed.
        """
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
            self._send({"step": step, "arguments": arguments})
            while True:
                check_cancel()
                try:
                    answer = self._answers.get(timeout=CHECK_INTERVAL_S)
                except queue.Empty:
                    continue
                if answer is None:
                    raise self._died()
                if "progress" in answer:
                    on_progress(*answer["progress"])
                    continue
                if "log" in answer:
                    on_log(answer["log"])
                    continue
                self.peak_bytes = max(self.peak_bytes, answer.get("peak_bytes", 0))
                if "error" in answer:
                    error = answer["error"]
                    raise StepFailed(
                        error["code"], error["message"], is_transient=error["is_transient"]
                    )
                return answer["result"]
        except BaseException:
            # Whatever the step still does, nobody waits for it.
            self.kill()
            raise

    def kill(self) -> None:
        """End the process, if it runs, and delete what it wrote."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
        shutil.rmtree(self._registry.job_folder(self._job_id), ignore_errors=True)

    def _start(self) -> None:
        self.kill()
        threads = self._settings.compute_threads or os.cpu_count() or 1
        each = 1 if self._divides_itself else threads
        environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(each))
        # -P: nothing is imported from the folder in which the worker was started.
        command = [sys.executable, "-P", "-m", "deltahub.workers.compute"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers = answers
        reading = (self._process, answers)
        threading.Thread(target=_read, args=reading, name="compute", daemon=True).start()
        self._send(
            {
                "registry": self._registry.settings.model_dump(mode="json"),
                "job_id": self._job_id,
                "worker_id": self._worker_id,
                "device": self._settings.device,
                "threads": threads,
                "memory_bytes": self._settings.compute_memory_bytes,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def _died(self) -> StepFailed:
        assert self._process is not None
        self._process.kill()  # if it has only closed its output
        status = self._process.wait()
        why = f"with status {status}" if status >= 0 else f"by signal {-status}"
        log.error("job=%s its compute process ended %s", self._job_id, why)
        return StepFailed(
            JobFailed.code,
            f"the process that computes ended {why}: the worker's log may say more, and the system"
            " ends processes that take too much memory",
        )


def _read(
    process: "subprocess.Popen[bytes]", answers: "queue.Queue[dict[str, Any] | None]"
) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(json.loads(line))
    except ValueError:
        pass  # the stream was closed, because the process was killed
    answers.put(None)
