"""Runs the job `compare` in this process, step by step, on models that were pushed before."""

from collections.abc import Callable
from typing import Any

from deltahub.methods.kinds.compare import CompareArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.results.asked import Wish, ask
from deltahub.registry.results.comparisons import read
from deltahub.registry.results.comparisons.read import TensorQuery
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.compare.job import compare
from support.merging.running import Here, at_once


def asked(reg: Registry, who: Caller, first: str, second: str, **options: Any) -> str:
    """Ask for a comparison, and give it its turn; the job's id."""
    arguments = CompareArguments(first=first, second=second, **options)
    given = arguments.model_dump(mode="json")
    job = ask(reg, who, Wish("compare", given, None, arguments.inputs(), only_reads=True))
    with reg.db.write() as session:
        assert queue.mark_running(session, job.id)
    return job.id


def run_compare(
    reg: Registry,
    job_id: str,
    run_step: Callable[[str, Callable[[], Any]], Any] = at_once,
) -> dict[str, Any]:
    with reg.db.read() as session:
        payload = dict(session.get_one(Job, job_id).payload)
    context = JobContext(reg, FileReader(reg), job_id, run_step, Here(reg, job_id))
    result = compare(context, payload)
    with reg.db.write() as session:
        queue.mark_done(session, job_id, result)
    return result


def compared(reg: Registry, who: Caller, first: str, second: str) -> str:
    """Compare two models; the comparison's id."""
    return str(run_compare(reg, asked(reg, who, first, second))["comparison_id"])


def tensors_of(reg: Registry, who: Caller, comparison_id: str) -> dict[str, dict[str, Any]]:
    found, _ = read.list_tensors(reg, who, comparison_id, TensorQuery(limit=10_000))
    return {each["name"]: each for each in found}
