"""A hub, its worker, its gc, its clients and its store are killed while real clients push.

Everything is drawn by seed, each cycle from a number generator of its own. The state is written
after each cycle, so that a campaign that was stopped goes on where it was.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from deltahub.registry.jobs.queue import next_queued, running
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.service.hub import ServedHub, served_hub
from support.service.workload import TIMEOUT_S, Workload, prove, wrong_files

VICTIMS = ("client", "hub", "hub", "worker", "worker", "gc", "nobody")
_STATE = "state.json"


@dataclass
class State:
    """How far a campaign is. n_killed: victim -> how often it was killed."""

    seed: int
    n_cycles: int = 0
    n_pushes: int = 0
    token: str = ""
    n_killed: dict[str, int] = field(default_factory=dict)
    acknowledged: list[tuple[str, str, str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, seed: int) -> "State":
        """The state that a campaign left in this folder, or the beginning of one."""
        path = folder / _STATE
        if not path.exists():
            return cls(seed)
        found = json.loads(path.read_text())
        found["acknowledged"] = [tuple(file) for file in found["acknowledged"]]
        return cls(**found)

    @property
    def n_kills(self) -> int:
        return sum(self.n_killed.values())

    def save(self, folder: Path) -> None:
        written = folder / f"{_STATE}.new"
        written.write_text(json.dumps(asdict(self)))
        written.rename(folder / _STATE)


class KillCampaign:
    """A campaign in a folder. It takes the hub's store from the environment."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        victims: Sequence[str] = VICTIMS,
        restart_store: Callable[[], None] | None = None,
    ) -> None:
        """seed: of a new campaign; one that goes on keeps its own. victims: drawn for each cycle.

        restart_store: kills the store and starts it again; it is a victim then.
        """
        self.state = State.of(folder, seed)
        self._folder = folder
        self._data_dir = folder / "data"
        self._restart_store = restart_store
        self._victims = victims if restart_store is None else (*victims, "store", "store")
        self._workload = Workload(folder, random.Random(), n_pushes=self.state.n_pushes)
        for name, commit, path, sha256 in self.state.acknowledged:
            self._workload.acknowledged[name, commit, path] = sha256

    def run(self, n_kills: int) -> None:
        """Push and kill until so many were killed; prove every acknowledged file after each."""
        with (self._folder / "hub.log").open("ab") as log, ExitStack() as stack:
            hub: ServedHub | None = None
            while self.state.n_kills < n_kills:
                chance = random.Random(f"{self.state.seed}/{self.state.n_cycles}")
                self._workload.chance = chance
                if hub is None or hub.process.poll() is not None:
                    hub = stack.enter_context(self._serve(log))
                victim = chance.choice(self._victims)
                is_killed = self._push_and_kill(hub, victim, chance)
                if hub.process.poll() is not None:
                    hub = stack.enter_context(self._serve(log))
                for (name, commit, path), sha256 in self._workload.acknowledged.items():
                    prove(hub, name, commit, path, sha256)
                self.state.n_killed[victim] = self.state.n_killed.get(victim, 0) + is_killed
                self._save()
                print(
                    f"cycle {self.state.n_cycles}: {victim}"
                    f" {'killed' if is_killed else 'not killed'},"
                    f" {self.state.n_kills} kills,"
                    f" {len(self._workload.acknowledged)} acknowledged files proved",
                    flush=True,
                )

    def end(self) -> None:
        """Let all jobs end, push once more, read every file by every door, and check the hub."""
        with (self._folder / "hub.log").open("ab") as log:
            with self._serve(log) as hub:
                wait_for_all_jobs(self._data_dir)
                assert self._workload.start(hub).end()
                self._save()
                wrong = list(wrong_files(hub, self._folder / "read", self._workload.acknowledged))
                assert wrong == []
                wait_for_all_jobs(self._data_dir)
            with Registry.open(Settings(data_dir=self._data_dir)) as reg:
                assert list(fsck(reg, read_data=True)) == []
        print(
            f"seed {self.state.seed}: {self.state.n_kills} kills"
            f" ({self.state.n_killed}), {len(self._workload.acknowledged)} acknowledged"
            " files, each read by every door: none wrong",
            flush=True,
        )

    @contextmanager
    def _serve(self, log: IO[bytes]) -> Iterator[ServedHub]:
        with served_hub(self._data_dir, token=self.state.token, log=log) as hub:
            self.state.token = hub.admin_token
            self.state.save(self._folder)
            yield hub

    def _save(self) -> None:
        self.state.n_cycles += 1
        self.state.n_pushes = self._workload.n_pushes
        self.state.acknowledged = [
            (*place, sha256) for place, sha256 in self._workload.acknowledged.items()
        ]
        self.state.save(self._folder)

    def _push_and_kill(self, hub: ServedHub, victim: str, chance: random.Random) -> bool:
        """Begin a push, and kill the victim at a random moment; whether it was still there."""
        upload = self._workload.start(hub)
        time.sleep(chance.uniform(0.3, 4))
        is_killed = victim != "nobody"
        if victim == "client":
            is_killed = upload.kill()
        elif victim == "hub":
            hub.kill_all()
        elif victim == "worker":
            kill_worker(hub)
        elif victim == "gc":
            is_killed = collect_and_kill(hub, chance)
        elif victim == "store":
            assert self._restart_store is not None
            self._restart_store()
        upload.end()
        return is_killed


def kill_worker(hub: ServedHub) -> None:
    """Kill the server's worker, which it may just be starting again."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (pids := worker_pids(hub)):
        assert time.monotonic() < deadline, "the hub has no worker"
        time.sleep(0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def worker_pids(hub: ServedHub) -> list[int]:
    """The server's child processes, whichever of its threads started them."""
    pids: list[int] = []
    for task in Path(f"/proc/{hub.process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def collect_and_kill(hub: ServedHub, chance: random.Random) -> bool:
    """Start `deltahub gc`, and kill it at a random moment; whether it still ran."""
    command = [sys.executable, "-m", "deltahub.client.cli.main", "gc", "--apply", "--grace", "0"]
    gc = subprocess.Popen(
        [*command, "--data-dir", str(hub.data_dir)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        gc.wait(chance.uniform(0.5, 2))
    except subprocess.TimeoutExpired:
        gc.kill()
        gc.wait()
        return True
    return False


def wait_for_all_jobs(data_dir: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        while True:
            with reg.db.read() as session:
                if not running(session) and not next_queued(session):
                    return
            assert time.monotonic() < deadline, "jobs do not come to an end"
            time.sleep(0.1)
