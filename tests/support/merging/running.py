"""Models that are merged, and merges of them that are asked for."""

from collections.abc import Sequence
from typing import Any

import torch

from deltahub.methods.kinds.merge import MergeArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Ref, Repository, Revision
from support.jobs.here import ask_job
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested

PATH = "model.safetensors"
CONFIG = {"config.json": b'{"model_type": "tiny"}\n'}


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
    return ask_job(reg, who, MergeArguments.model_validate(given | options))


def branches(reg: Registry, name: str) -> dict[str, int]:
    """Branch -> row of its revision."""
    with reg.db.read() as session:
        repository = session.query(Repository).filter_by(name=name).one()
        refs = session.query(Ref).filter_by(repository_id=repository.id)
        return {ref.name: session.get_one(Revision, ref.revision_id).id for ref in refs}
