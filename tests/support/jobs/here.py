"""Runs jobs that people ask for in this process, step by step, on models that were pushed."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from deltahub.methods.kinds.kind import JobArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.results.asked import Wish, ask
from deltahub.workers.compute import child
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.context import JobContext
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.kinds import KINDS
from deltahub.workers.settings import WorkerSettings

T = TypeVar("T")


class Here(ComputeProcess):
    """Steps run in this process, by the code that the compute process runs."""

    def __init__(self, reg: Registry, job_id: str, threads: int = 2) -> None:
        super().__init__(reg, WorkerSettings(), job_id)
        self._log: Callable[[str], None] = lambda _: None
        self._context = ComputeContext(
            reg, FileReader(reg), job_id, threads, lambda *_: None, lambda text: self._log(text)
        )

    def run(self, step: str, arguments: dict[str, Any], **listeners: Any) -> Any:
        self._log = listeners.get("on_log") or self._log
        request = json.loads(json.dumps({"step": step, "arguments": arguments}))
        answer = json.loads(json.dumps(child.answer(self._context, request)))
        if "error" in answer:
            error = answer["error"]
            raise StepFailed(error["code"], error["message"], is_transient=error["is_transient"])
        return answer["result"]


def ask_job(reg: Registry, who: Caller, arguments: JobArguments) -> str:
    """Ask for a job without the checks of the server, and give it its turn; the job's id."""
    wish = Wish(
        arguments.kind,
        arguments.model_dump(mode="json"),
        getattr(arguments, "name", None),
        arguments.inputs(),
        getattr(arguments, "private", None),
        arguments.only_reads,
    )
    job = ask(reg, who, wish)
    with reg.db.write_beside() as session:
        assert queue.mark_running(session, job.id)
    return job.id


def at_once(name: str, function: Callable[[], T]) -> T:
    return function()


def run_job(
    reg: Registry,
    job_id: str,
    run_step: Callable[[str, Callable[[], Any]], Any] = at_once,
    threads: int = 2,
) -> dict[str, Any]:
    """Run a job that has its turn to its end; its result."""
    with reg.db.read() as session:
        job = session.get_one(Job, job_id)
        kind, payload = job.kind, dict(job.payload)
    context = JobContext(reg, FileReader(reg), job_id, run_step, Here(reg, job_id, threads))
    result = KINDS[kind].run(context, payload)
    with reg.db.write_beside() as session:
        queue.mark_done(session, job_id, result)
    return result
