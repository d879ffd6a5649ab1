"""Pushes, pulls, deletions, collections, crashes and restarts on a store that fails now and then.

A dict is the model: repository -> path -> bytes. An operation that succeeded has happened; one that
failed has happened or not, and the hub says which once its store answers again.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from safetensors.torch import save
from sqlalchemy import func, select

from deltahub.registry import Registry, Settings
from deltahub.registry.catalog.commit import AddFile, DeleteFile, commit
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import File, Pack, Tensor
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import NotFound, RepositoryNotFound
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.transient import is_transient
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.reencode.recompress import apply_recompress, plan_recompress
from deltahub.registry.reencode.replan import Replanner
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.registry.storage.base import Store
from deltahub.registry.xet.receive_xorb import has_xorb
from support.registry import opened
from support.registry.commits import files as committed
from support.registry.xet import FileOf, TermOf, XorbOf, cut, repository_row, send_shard, send_xorb
from support.stores.faulty_store import Faults, Killed, stores_are_faulty

STEPS = int(os.environ.get("DELTAHUB_FAULT_STEPS", "25"))
# (path -> contents) of what is pushed: fine-tunes of one base, small files, and a large one.
NAMES = [f"ann/m{i}" for i in range(3)]
N_MODELS = 5
RATES = [0.02, 0.1, 0.3]

Model = dict[str, dict[str, bytes]]


def profile(max_examples: int) -> settings:
    """DELTAHUB_FAULT_EXAMPLES and DELTAHUB_FAULT_STEPS ask for more, --hypothesis-seed for the
    same again.
    """
    return settings(
        max_examples=int(os.environ.get("DELTAHUB_FAULT_EXAMPLES", max_examples)),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@cache
def model_file(number: int) -> bytes:
    """A base of 40 KB for number 0, then its fine-tunes."""
    torch.manual_seed(7)
    tensors = {f"layer.{i}": torch.randn(72, 72) for i in range(2)}
    torch.manual_seed(number)
    if number:
        tensors["layer.0"] = tensors["layer.0"] + 1e-5 * torch.randn(72, 72)
    return save(tensors)


class FaultMachine(RuleBasedStateMachine):
    """A hub on a store in a local folder. Subclasses have others."""

    def store_settings(self) -> dict[str, Any]:
        """Settings of the store: once for each hub."""
        return {}

    def make_store(self) -> Callable[[], Store] | None:
        """Opens the store; None if the settings do."""
        return None

    def __init__(self) -> None:
        super().__init__()
        self.model: Model = {}
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.faults = Faults(seed)
        self.stack.enter_context(stores_are_faulty(self.faults, self.make_store()))
        self.settings = self.store_settings()
        self._open()
        self.who = opened.caller(self.reg, "ann")

    def _open(self) -> None:
        # A higher effort would not make a failure harder to survive.
        self.reg = Registry.open(
            Settings(data_dir=self.folder / "data", codec_effort="fast", **self.settings)
        )
        self.reader = FileReader(self.reg)

    def teardown(self) -> None:
        try:
            if hasattr(self, "reg"):
                self._end()
        finally:
            if hasattr(self, "reg"):
                self.reg.close()
            self.stack.close()

    def _end(self) -> None:
        """Without faults, all is as it should be, and stays so when the garbage is collected."""
        self.faults.rate, self.faults.kill_in = 0.0, None
        while self._run_a_job():
            pass
        for name, files in self.model.items():
            assert self._read(name) == files
        for _ in range(2):  # first packs are condemned, then deleted
            apply_gc(self.reg, plan_gc(self.reg, lease_s=0, grace_s=0), delete_unknown=True)
        assert list(fsck(self.reg, read_data=True)) == []
        for name, files in self.model.items():
            assert self._read(name) == files

    # What goes wrong from now on.

    @rule(rate=st.sampled_from(RATES))
    def fail_often(self, rate: float) -> None:
        self.faults.rate = rate

    @rule()
    def fail_no_more(self) -> None:
        self.faults.rate = 0.0

    @rule(n=st.integers(0, 30))
    def die_soon(self, n: int) -> None:
        self.faults.kill_in = n

    @rule()
    def restart(self) -> None:
        with self.faults.off():
            self.reg.close()
            self._open()

    # What users and operators do.

    @rule(
        name=st.sampled_from(NAMES),
        number=st.integers(0, N_MODELS - 1),
        note=st.integers(0, 3),
        has_base=st.booleans(),
    )
    def push(self, name: str, number: int, note: int, has_base: bool) -> None:
        files = {"model.safetensors": model_file(number), f"{note}.txt": f"note {note}".encode()}
        before = self.model.get(name)
        after = {**(before or {}), **files}
        base = f"{NAMES[0]}" if has_base and NAMES[0] in self.model else None
        with self._changes(name, before, {}, after):
            opened.push(self.reg, self.who, name, files, base=base)
            self.model[name] = after

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 3))
    def push_by_xet(self, name: str, number: int) -> None:
        xorb = XorbOf(cut(f"chunk of {number};".encode() * 500, 2000), scheme=1)
        file = FileOf([TermOf(xorb, 1), TermOf(xorb, 0, 2)])
        before = self.model.get(name)
        after = {**(before or {}), "a.bin": file.data}
        with self._changes(name, before, {}, after):
            opened.ensure_repository(self.reg, self.who, name)
            send_xorb(self.reg, name, xorb)
            assert has_xorb(self.reg, repository_row(self.reg, name).id, xorb.hash)
            send_shard(self.reg, self.who, name, [file])
            add = AddFile("a.bin", file.digest, len(file.data))
            commit(self.reg, self.who, name, "main", [add])
            self.model[name] = after

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_a_file(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        before = self.model[name]
        if not before:
            return
        path = data.draw(st.sampled_from(sorted(before)))
        after = {other: content for other, content in before.items() if other != path}
        with self._changes(name, before, after):
            commit(self.reg, self.who, name, "main", [DeleteFile(path)])
            self.model[name] = after

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_a_repository(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        with self._changes(name, self.model[name], None):
            delete_repository(self.reg, self.who, name)
            del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        with self._may_fail():
            assert self._read(name) == self.model[name]

    @rule(times=st.integers(1, 3))
    def work(self, times: int) -> None:
        for _ in range(times):
            with self._may_fail():
                self._run_a_job()

    @rule()
    def collect(self) -> None:
        with self._may_fail():
            apply_gc(self.reg, plan_gc(self.reg, lease_s=0, grace_s=0))

    @rule()
    def recompress(self) -> None:
        with self._may_fail():
            apply_recompress(self.reg, self.reader, plan_recompress(self.reg, self.reader))

    @rule(read_data=st.booleans())
    def check(self, read_data: bool) -> None:
        with self._may_fail():
            # A put whose answer was lost leaves an object without a row, which gc deletes.
            known = {"unknown_object"} | ({"object_unreadable"} if self.faults.rate else set())
            findings = fsck(self.reg, read_data=read_data)
            assert [each for each in findings if each.code not in known] == []

    @rule(read_data=st.booleans())
    def repair(self, read_data: bool) -> None:
        with self._may_fail():
            repair(self.reg, read_data=read_data)

    @invariant()
    def nothing_is_believed_lost(self) -> None:
        if not hasattr(self, "reg"):
            return
        with self.reg.db.read() as session:
            for column, value in (
                (File.state, "lost"), (Pack.state, "damaged"),
                (Tensor.lost, "frames"), (Tensor.lost, "base"),
            ):  # fmt: skip
                n = session.scalar(select(func.count()).where(column == value))
                assert n == 0, f"{n} rows have {column} {value!r}, and nothing is lost"
            failed = session.scalars(select(Job).where(Job.state == "failed")).all()
            assert [(job.kind, job.error) for job in failed] == []

    # How the model and the hub are compared.

    @contextmanager
    def _may_fail(self) -> Iterator[None]:
        """A context whose work may meet an error that passes, or the death of the process."""
        try:
            yield
        except Killed:
            self._rise()
        except Exception as error:
            if not is_transient(error):
                raise
        if self.faults.is_dead:  # whoever met the death caught it
            self._rise()

    def _rise(self) -> None:
        """The next process opens the folder. The last closed nothing but what the kernel closes."""
        self.reg.spool.close()
        self.reg.db.close()
        self.faults.restart()
        with self.faults.off():
            self._open()

    @contextmanager
    def _changes(self, name: str, *states: dict[str, bytes] | None) -> Iterator[None]:
        """A context whose work leaves the repository in one of these states if it fails."""
        is_over = False
        with self._may_fail():
            yield
            is_over = True
        if not is_over:
            with self.faults.off():
                found = self._tree(name)
                hashes = [
                    None if state is None
                    else {path: opened.sha256_of(data) for path, data in state.items()}
                    for state in states
                ]  # fmt: skip
                assert found in hashes, f"{name} has {found}, and not one of {hashes}"
            self.model.pop(name, None)
            if (state := states[hashes.index(found)]) is not None:
                self.model[name] = state

    def _tree(self, name: str) -> dict[str, str] | None:
        """path -> SHA-256 at the head of main; empty without a commit; None without repository."""
        try:
            return committed(self.reg, name=name)
        except RepositoryNotFound:
            return None
        except NotFound:
            return {}

    def _read(self, name: str) -> dict[str, bytes]:
        found = {}
        for path, sha256 in (self._tree(name) or {}).items():
            with self.reg.db.read() as session:
                file = session.scalars(select(File).where(File.sha256 == sha256)).first()
            assert file is not None
            found[path] = b"".join(self.reader.stream_file(file, 0, file.size))
        return found

    def _run_a_job(self) -> bool:
        """Run a job that is queued or was interrupted; False if there is none."""
        with self.reg.db.read() as session:
            waiting = [*queue.running(session), *queue.next_queued(session)]
        if not waiting:
            return False
        job = waiting[0]
        with self.reg.db.write() as session:
            queue.mark_running(session, job.id)
        if job.kind == "prove_recipe":
            verify_recipe(self.reg, self.reader, job.id, job.payload)
        elif job.kind == "ingest":
            Ingest(self.reg, self.reader, job.payload["revision_id"], job.id).run()
            after_ingest(self.reg, self.reader, job.payload["revision_id"])
        else:
            position: int | None = 0
            while position is not None:
                planner = Replanner(self.reg, self.reader, job.payload["revision_id"])
                position = planner.step(position).next_position
        with self.reg.db.write() as session:
            queue.mark_done(session, job.id, {})
        return True
