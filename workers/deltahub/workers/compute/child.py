"""The inside of a compute process: it runs one step after the other until its input ends.

Requests and answers are lines of JSON on standard input and output (see process.py).
"""

import importlib
import json
import logging
import os
import queue
import resource
import sys
import threading
import time
from typing import IO, Any, Final

from deltahub.codecs.errors import CodecError
from deltahub.methods.errors import MethodError
from deltahub.registry.db.session import WriteSession, fenced
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import JobFailed, RegistryError
from deltahub.registry.jobs.owners import require_worker
from deltahub.registry.jobs.transient import code_of, is_transient
from deltahub.registry.logs import LogFormatter, log_to_stderr
from deltahub.registry.parent import die_with_parent
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import StoreError
from deltahub.workers.compute.context import ComputeContext, Step

log = logging.getLogger(__name__)

# Only these modules have steps.
STEPS: Final = "deltahub.workers.jobs."
REPORT_INTERVAL_S: Final = 0.2
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Serve requests. The first line of the input has the process's settings."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    settings = json.loads(sys.stdin.buffer.readline())
    # Before any thread exists, because the signal belongs to the thread that asks for it.
    die_with_parent(watch_input=False)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    limit = settings["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    hub_settings = Settings(**settings["registry"])
    formatter = LogFormatter("compute", hub_settings.log_format)
    log_to_stderr(formatter, level=logging.WARNING)
    threading.Thread(target=_read, args=(requests,), name="requests", daemon=True).start()
    registry = Registry.open(hub_settings)
    writer = _Writer(answers)
    context = ComputeContext(
        registry,
        FileReader(registry),
        settings["job_id"],
        settings["threads"],
        writer.report,
        lambda text: writer.write({"log": text}),
        settings["device"],
    )
    worker_id = settings["worker_id"]

    def require_ownership(session: WriteSession) -> None:
        if worker_id is not None:
            require_worker(session, settings["job_id"], worker_id)

    with fenced(require_ownership):
        while True:
            request = requests.get()
            told = answer(context, request)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            writer.write(told | {"peak_bytes": peak * _RSS_UNIT})


def _read(requests: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the worker is gone, or wants no more steps


class _Writer:
    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._reported_at = 0.0

    def write(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._answers.write(json.dumps(answer) + "\n")

    def report(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self.write({"progress": [stage, done, total]})


def answer(context: ComputeContext, request: dict[str, Any]) -> dict[str, Any]:
    """{"result"} of a step, or {"error"}."""
    try:
        found = _step(request["step"])(context, request["arguments"])
        json.dumps(found)  # a step that returns something else is a bug, and fails as one
        return {"result": found}
    except (RegistryError, CodecError, StoreError, MethodError) as error:
        passes = is_transient(error)
        code = code_of(error) if passes else error.code
        return _error(code, str(error), is_transient=passes)
    except MemoryError:
        return _error(
            JobFailed.code,
            "the job needs more memory than it may take: the operator gives it more by"
            " DELTAHUB_WORKER_COMPUTE_MEMORY_BYTES",
        )
    except Exception as error:
        if is_transient(error):
            return _error(code_of(error), str(error), is_transient=True)
        log.error("job=%s step=%s broke", context.job_id, request["step"], exc_info=error)
        return _error(JobFailed.code, f"{type(error).__name__}: {error}")


def _error(code: str, message: str, *, is_transient: bool = False) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "is_transient": is_transient}}


def _step(path: str) -> Step:
    module, _, name = path.partition(":")
    if not module.startswith(STEPS):
        raise RuntimeError(f"{path} is no step of a job")
    step: Step = getattr(importlib.import_module(module), name)
    return step
