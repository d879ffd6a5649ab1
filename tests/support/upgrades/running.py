"""Runs the job `upgrade_base` and the moves that it begins in this process, in the tiny world."""

import json
from typing import Any

from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.jobs import queue
from deltahub.registry.results.asked import ask
from deltahub.server.schemas.jobs import wish_of
from support.jobs.here import run_job
from support.registry.ingested import ingest, push_ingested
from support.transfer.running import base_files, run_transfer, teacher_files
from support.upgrades.planned import jobs_of


def push_bases(reg: Registry, who: Caller, *names: str, **options: Any) -> None:
    """Push bases of the tiny world as WHO/NAME."""
    for name in names:
        push_ingested(reg, who, f"{who.name}/{name}", base_files(name), **options)


def push_adapter(
    reg: Registry, who: Caller, name: str, base: str, *, init_lora_weights: str | None = None
) -> int:
    """Push the same trained adapter of v1 under a name; the row of its revision.

    init_lora_weights: what its configuration says that it started from, in place of zeros.
    """
    files = dict(teacher_files(base))
    if init_lora_weights is not None:
        config = json.loads(files["adapter_config.json"])
        config["init_lora_weights"] = init_lora_weights
        files["adapter_config.json"] = json.dumps(config).encode()
    return push_ingested(reg, who, name, files, base=base)


def plan(reg: Registry, who: Caller, old: str, new: str, **options: Any) -> dict[str, Any]:
    """Ask for an upgrade and run its job; what it tells."""
    arguments = UpgradeBaseArguments(base=new, from_base=old, **options)
    return run_planning(reg, ask(reg, who, wish_of(arguments)).id)


def run_planning(reg: Registry, job_id: str) -> dict[str, Any]:
    with reg.db.write_beside() as session:
        assert queue.mark_running(session, job_id)
    return dict(json.loads(json.dumps(run_job(reg, job_id, threads=1))))


def run_moves(reg: Registry) -> int:
    """Run every job of a move that is queued, as the worker would; how many."""
    waiting = jobs_of(reg, "transfer_adapter", "queued")
    for job in waiting:
        with reg.db.write_beside() as session:
            assert queue.mark_running(session, job.id)
        run_transfer(reg, job.id)
    for job in jobs_of(reg, "ingest", "queued"):
        ingest(reg, job.payload["revision_id"], job.id)
    return len(waiting)


def head_of(reg: Registry, name: str) -> Revision:
    """The head of main of the only repository of this short name."""
    with reg.db.read() as session:
        found = session.query(Repository).filter_by(name=name.partition("/")[2]).one()
        return session.get_one(Revision, found.head_id)
