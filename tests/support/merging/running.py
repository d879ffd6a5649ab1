"""Runs the job `merge` in this process, step by step, on models that were pushed before."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from deltahub.methods.kinds.merge import MergeArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Ref, Repository, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.results.asked import Wish, ask
from deltahub.workers.compute import child
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.process import ComputeProcess
from deltahub.workers.context import JobContext
from deltahub.workers.failures import StepFailed
from deltahub.workers.jobs.merge.job import merge
from deltahub.workers.settings import WorkerSettings
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested

T = TypeVar("T")
PATH = "model.safetensors"
CONFIG = {"config.json": b'{"model_type": "tiny"}\n'}


class Here(ComputeProcess):
    """Steps run in this process, by the code that the compute process runs."""

    def __init__(self, reg: Registry, job_id: str, threads: int = 2) -> None:
        super().__init__(reg, WorkerSettings(), job_id)
        self._context = ComputeContext(
            reg, FileReader(reg), job_id, threads, lambda *_: None, lambda _: None
        )

    def run(self, step: str, arguments: dict[str, Any], **_: Any) -> Any:
        request = json.loads(json.dumps({"step": step, "arguments": arguments}))
        answer = json.loads(json.dumps(child.answer(self._context, request)))
        if "error" in answer:
            error = answer["error"]
            raise StepFailed(error["code"], error["message"], is_transient=error["is_transient"])
        return answer["result"]


def push_family(
    reg: Registry, who: Caller, tasks: Sequence[dict[str, torch.Tensor]], **options: Any
) -> list[str]:
    """Push the tiny base as WHO/base, and fine-tunes of it as WHO/task0, ...; their names."""
    space = who.name
    push_ingested(reg, who, f"{space}/base", {PATH: tiny.to_file(tiny.base()), **CONFIG}, **options)
    names = [f"{space}/task{number}" for number in range(len(tasks))]
    for name, tensors in zip(names, tasks, strict=True):
        files = {PATH: tiny.to_file(tensors), **CONFIG}
        push_ingested(reg, who, name, files, base=f"{space}/base", **options)
    return names


def asked(reg: Registry, who: Caller, models: Sequence[str], **options: Any) -> str:
    """Ask for a merge of these models as WHO/merged, and give it its turn; the job's id."""
    given = {"name": f"{who.name}/merged", "base": f"{who.name}/base", "models": list(models)}
    arguments = MergeArguments.model_validate(given | options)
    wish = Wish(
        arguments.kind,
        arguments.model_dump(mode="json"),
        arguments.name,
        arguments.inputs(),
        arguments.private,
    )
    job = ask(reg, who, wish)
    with reg.db.write_beside() as session:
        assert queue.mark_running(session, job.id)
    return job.id


def at_once(name: str, function: Callable[[], T]) -> T:
    return function()


def run_merge(
    reg: Registry,
    job_id: str,
    run_step: Callable[[str, Callable[[], Any]], Any] = at_once,
    threads: int = 2,
) -> Mapping[str, Any]:
    with reg.db.read() as session:
        payload = dict(session.get_one(Job, job_id).payload)
    context = JobContext(reg, FileReader(reg), job_id, run_step, Here(reg, job_id, threads))
    result = merge(context, payload)
    with reg.db.write_beside() as session:
        queue.mark_done(session, job_id, result)
    return result


def branches(reg: Registry, name: str) -> dict[str, int]:
    """Branch -> row of its revision."""
    with reg.db.read() as session:
        repository = session.query(Repository).filter_by(name=name).one()
        refs = session.query(Ref).filter_by(repository_id=repository.id)
        return {ref.name: session.get_one(Revision, ref.revision_id).id for ref in refs}
