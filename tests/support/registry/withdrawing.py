"""A base with fine-tunes that becomes private or is deleted, as by a server and its worker."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import TensorBase
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress
from deltahub.registry.reencode.withdraw import Change, Withdrawal, WithdrawJob, withdraw
from support.models import tiny_models as tiny
from support.registry.collecting import is_clean
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry

PATH = "model.safetensors"
CHANGES: tuple[Change, ...] = ("private", "delete")
SILENT = Progress(lambda stage, done, total: None, lambda: None)


def withdraw_now(reg: Registry, who: Caller, name: str, change: Change) -> Withdrawal | None:
    """Ask for the change and run its job, if it needs one."""
    asked = withdraw(reg, who, name, change)
    if asked is not None:
        run_withdrawal(reg, asked.job_id)
    return asked


def run_withdrawal(reg: Registry, job_id: str) -> int:
    """Run the job as a worker does; returns the number of its steps."""
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
        payload = session.get_one(Job, job_id).payload
    work = WithdrawJob(reg, FileReader(reg), job_id, payload["change"], payload["scope"])
    n_steps = 1
    while not work.step(SILENT).is_last:
        n_steps += 1
    with reg.db.write() as session:
        assert queue.mark_done(session, job_id, {})
    return n_steps


BASE = tiny.to_file(tiny.base())


def tune(learning_rate: float) -> bytes:
    return tiny.to_file(tiny.finetune(learning_rate))


# name -> its bytes, its declared base, whether it is private
TUNES = {
    "ann/tuned": (tune(1e-5), "ann/base", False),
    "bob/tuned": (tune(2e-5), "ann/base", False),
    "bob/again": (tune(3e-5), "bob/tuned", False),
    "bob/hidden": (tune(4e-5), "ann/base", True),
    "ann/hidden": (tune(5e-5), "ann/base", True),
}
OUTSIDE = ("ann/tuned", "bob/tuned", "bob/again", "bob/hidden")


@dataclass(frozen=True)
class Models:
    """Row ids: of the base's revision and tensors, and of the fine-tunes' revisions."""

    base: int
    base_tensors: frozenset[int]
    tunes: dict[str, int]


def make_models(folder: Path) -> Models:
    """Fill a registry in folder/data with ann/base and its fine-tunes, in chains of depth 2."""
    with opened_registry(folder, max_depth=2) as reg:
        people = {name: caller(reg, name) for name in ("ann", "bob")}
        base = push_ingested(reg, people["ann"], "ann/base", {PATH: BASE, "config.json": b"{}"})
        tunes = {
            name: push_ingested(
                reg, people[name[:3]], name, {PATH: data}, base=declared, private=is_private
            )
            for name, (data, declared, is_private) in TUNES.items()
        }
        rows = frozenset(stored.id for stored in stored_tensors(reg, base).values())
        models = Models(base, rows, tunes)
        assert all(needs_base(reg, models, name) for name in TUNES)
        again = stored_tensors(reg, tunes["bob/again"])
        assert max(stored.depth for stored in again.values()) == 2
    return models


def needs_base(reg: Registry, models: Models, name: str) -> bool:
    """Whether decoding the fine-tune reads a tensor of the base that is not the fine-tune's own."""
    own = {stored.id for stored in stored_tensors(reg, models.tunes[name]).values()}
    needed, level = set(own), set(own)
    with reg.db.read() as session:
        while level:
            query = select(TensorBase.base_id).where(TensorBase.tensor_id.in_(level))
            level = set(session.scalars(query)) - needed
            needed |= level
    return bool((needed - own) & models.base_tensors)


def check_files(reg: Registry, models: Models, *names: str) -> None:
    for name in names or TUNES:
        assert read_file(reg, models.tunes[name], PATH) == TUNES[name][0]
    assert is_clean(reg)
