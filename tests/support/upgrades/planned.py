"""Bases and adapters of some kilobytes, and plans of upgrades as the job writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from deltahub.registry import Caller, Registry
from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.registry.upgrades.adapters import find_adapters
from deltahub.registry.upgrades.plans import PlannedMove, Written, write_plan
from deltahub.registry.upgrades.shown import MoveInfo, get_upgrade
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, push

PATH = "model.safetensors"
_CONFIG = b'{"peft_type": "LORA", "r": 2, "base_model_name_or_path": "%s"}'


@dataclass(frozen=True)
class Bases:
    """old, new: rows of the revisions of ann/v1 and ann/v2."""

    reg: Registry
    ann: Caller
    bob: Caller
    old: int
    new: int

    @classmethod
    def pushed(cls, reg: Registry) -> "Bases":
        """Push both: the newer one is the older one, trained further."""
        ann, bob = caller(reg, "ann"), caller(reg, "bob")
        old = push_base(reg, ann, "ann/v1", tiny.base())
        return cls(reg, ann, bob, old, push_base(reg, ann, "ann/v2", tiny.finetune(1e-4)))


def base_files(tensors: tiny.Tensors, card: str = "") -> dict[str, bytes]:
    files = {PATH: tiny.to_file(tensors), "config.json": b'{"model_type": "tiny"}'}
    return files | ({"README.md": card.encode()} if card else {})


def push_base(
    reg: Registry, who: Caller, name: str, tensors: tiny.Tensors, card: str = "", **options: Any
) -> int:
    return push_ingested(reg, who, name, base_files(tensors, card), **options)


def push_adapter(reg: Registry, who: Caller, name: str, base: str, **options: Any) -> int:
    """An adapter of a base, whose factors name it, so that no two adapters are one file."""
    seed = sum(name.encode())
    torch.manual_seed(seed)
    factors = {"a.lora_A.weight": torch.randn(2, 8), "a.lora_B.weight": torch.randn(8, 2)}
    files = {
        "adapter_config.json": _CONFIG % base.encode(),
        "adapter_model.safetensors": tiny.to_file(factors),
    }
    return push_ingested(reg, who, name, files, base=base, **options)


def revision(reg: Registry, row: int) -> Revision:
    with reg.db.read() as session:
        return session.get_one(Revision, row)


def written(
    reg: Registry, who: Caller, old: int, new: int, policy: str = "ask", **plan: Any
) -> Written:
    """Plan all adapters that this user may move. plan: of each, beside what the job says."""
    with reg.db.read() as session:
        bases = session.get_one(Revision, old), session.get_one(Revision, new)
        found, _ = find_adapters(session, who, *bases)
    moves = []
    for each in found:
        if each.why_skipped is not None:
            continue
        adapter = f"{each.name}@{each.revision.commit}"
        arguments = {
            "adapter": adapter,
            "base": _title(reg, new),
            "source_base": _title(reg, each.base.id),
            "name": f"{each.name}-v2",
            "private": None,
        }
        inputs = {"adapter": each.revision.id, "base": new, "source_base": each.base.id}
        told: dict[str, Any] = {"adapter": adapter, "teacher": adapter, "rungs": [], "missing": []}
        moves.append(
            PlannedMove(each.repository.id, each.revision.id, arguments, inputs, told | plan)
        )
    return write_plan(reg, who, (old, new), moves, policy)


def publish(
    reg: Registry, who: Caller, job: Job, result: Mapping[str, Any] | None = None, **options: Any
) -> str:
    """End the job of a move as one does that has published; the name of its repository."""
    name = str(job.payload["name"])
    commit = push(reg, who, name, {"adapter_config.json": b"{}"}, **options).commit
    with reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
        repository = session.query(Repository).filter_by(name=name.partition("/")[2]).one()
        session.get_one(Job, job.id).repository_id = repository.id
        way = {
            "rung": "copy", "agreed": {"n": 100, "value": 0.9, "lower": 0.8, "upper": 0.95},
            "cost": {"seconds": 12.0, "device": "cpu"},
        }  # fmt: skip
        told = {
            "published": True, "repository": name, "revision": commit, "chosen": "copy",
            "report": {"rungs": [way]},
            "agreed": {"value": 0.9, "low": 0.8, "high": 0.95}, "reasons": ["it is as good"],
        }  # fmt: skip
        assert queue.mark_done(session, job.id, told | dict(result or {}))
    return name


def moves(reg: Registry, who: Caller | None, upgrade_id: int) -> dict[str, MoveInfo]:
    """Adapter -> what is told of it."""
    return {each.adapter: each for each in get_upgrade(reg, who, upgrade_id)[1]}


def state_of(reg: Registry, who: Caller | None, upgrade_id: int) -> str:
    return get_upgrade(reg, who, upgrade_id)[0].state


def jobs_of(reg: Registry, kind: str, *states: str) -> list[Job]:
    with reg.db.read() as session:
        return [
            job
            for job in session.query(Job).order_by(Job.created_at, Job.id)
            if job.kind == kind and (not states or job.state in states)
        ]


def _title(reg: Registry, row: int) -> str:
    with reg.db.read() as session:
        found = session.get_one(Revision, row)
        name = full_name(session, session.get_one(Repository, found.repository_id))
        return f"{name}@{found.commit}"
