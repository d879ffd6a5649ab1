"""Each part of a hub of many processes is killed, round by round, while real clients use it.

Everything is drawn by seed, each round from a number generator of its own. The state is written
after each acknowledgement, so that a campaign that was interrupted goes on where it was.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import TypeVar

from support.containers.scaled_hub import SERVERS, WORKERS, ScaledHub, scaled_hub
from support.containers.scaled_operations import Collection, Merge, Operation
from support.service.hub import Hub
from support.service.kill_campaign import State
from support.service.workload import Upload, Workload, ask, prove

PARTS = (*SERVERS, *WORKERS, "database", "store", "client")
# What is done in a round: a push, one of a plain file that takes seconds, a merge, a garbage
# collection. Seven rounds have all of it, and kill each part once.
HANDS = (
    ("push",), ("push", "push"), ("push", "merge"), ("merge", "gc"), ("push", "gc"), ("large",),
    ("large", "push"),
)  # fmt: skip
FINISH_S = 300
# So that a campaign of half an hour deletes packs, too.
SETTINGS = {"DELTAHUB_READ_LEASE_S": "60", "DELTAHUB_S3_LINK_LIFETIME_S": "60"}
_READERS = 4

_Card = TypeVar("_Card")


class ScaledKills:
    """A campaign in a folder, with all parts of its hub."""

    def __init__(self, folder: Path, seed: int) -> None:
        """seed: of a new campaign; one that goes on keeps its own."""
        self.state = State.of(folder, seed)
        self._folder = folder
        self._parts: ScaledHub = scaled_hub(folder, **SETTINGS)
        self._starts = Lock()
        self._killed: set[str] = set()
        self._n_restarts = 0
        self._ended: list[tuple[str, str]] = []
        self._workload = Workload(folder, Random(), n_pushes=self.state.n_pushes)
        for name, commit, path, digest in self.state.acknowledged:
            self._workload.acknowledged[name, commit, path] = digest

    def run(self, n_rounds: int) -> None:
        """Kill in so many rounds; prove every acknowledged file after each."""
        kill_leftovers(self._folder)
        try:
            self._parts.up()
            with self._restarted():
                self._prepare()
                while self.state.n_cycles < n_rounds:
                    self._round(self.state.n_cycles)
                self._end()
        finally:
            self._parts.down()
            kill_leftovers(self._folder)

    @property
    def _hub(self) -> Hub:
        """The hub behind its balancer."""
        return Hub(self._parts.url, self._parts.token, self._parts.place)

    @contextmanager
    def _restarted(self) -> Iterator[None]:
        """A context in which workers that give up are started again, as the compose file says.

        A worker may give up only before it is ready, because a kill met the database meanwhile.
        """
        is_over = Event()

        def watch() -> None:
            while not is_over.wait(0.3):
                with self._starts:
                    for name in [*SERVERS, *WORKERS]:
                        process = self._parts.processes[name]
                        if name in self._killed or process.poll() is None:
                            continue
                        said = self._parts.logged(name)
                        if name in SERVERS or "worker is ready" in said:
                            self._ended.append((name, said))
                        self._n_restarts += 1
                        self._parts.start(name)

        watcher = Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _prepare(self) -> None:
        """A base and two fine-tunes, so that there is something to merge from the beginning."""
        self._workload.chance = Random(f"{self.state.seed}-models")
        for is_tuned in (False, True, True) if self.state.n_cycles == 0 else ():
            self._finish(self._workload.push(self._hub, 0, is_tuned=is_tuned))

    def _round(self, number: int) -> None:
        begun = time.monotonic()
        chance = self._workload.chance = Random(f"{self.state.seed}-{number}")
        part = _dealt(PARTS, f"{self.state.seed}-parts", number)
        hand = _dealt(HANDS, f"{self.state.seed}-hands", number)
        killed = [part]
        if chance.random() < 0.2:
            killed.append(chance.choice([each for each in PARTS[:-1] if each != part]))
        operations = [self._operation(each, chance) for each in hand]
        self._go_on(operations, chance.uniform(0.3, 5))
        for each in killed:
            self._kill(each, operations, chance)
            time.sleep(chance.uniform(0, 2))
        self._start_again(killed)
        for operation in operations:
            self._finish(operation)
        self._check(chance)
        for each in killed:
            self.state.n_killed[each] = self.state.n_killed.get(each, 0) + 1
        self.state.n_cycles += 1
        self._save()
        print(
            f"round {number}: {' and '.join(hand)}; {' and '.join(killed)} killed;"
            f" {len(self._workload.acknowledged)} acknowledged files proved;"
            f" {time.monotonic() - begun:.1f} s",
            flush=True,
        )

    def _go_on(self, operations: list[Operation], for_s: float) -> None:
        """Begin another push whenever nothing is under way, so that the kill meets something."""
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            if all(each.is_over() for each in operations):
                operations.append(self._workload.start(self._hub))
            time.sleep(0.05)

    def _operation(self, kind: str, chance: Random) -> Operation:
        if kind == "large":
            return self._workload.push_large(self._hub, chance.randrange(8 << 20, 24 << 20))
        if kind == "gc":
            return Collection(self._parts)
        if kind == "merge":
            key = f"{self.state.n_cycles}-{len(self._workload.acknowledged)}"
            return Merge.of(self._hub, self._workload.acknowledged, key, chance)
        return self._workload.start(self._hub)

    def _kill(self, part: str, operations: list[Operation], chance: Random) -> None:
        if part == "database":
            self._parts.database.kill()
        elif part == "store":
            self._parts.store.kill()
        elif part == "client":
            while not any(isinstance(each, Upload) and each.kill() for each in operations):
                operations.append(self._workload.start(self._hub))
                time.sleep(chance.uniform(0.3, 3))
        else:
            with self._starts:
                self._killed.add(part)
                self._parts.kill(part)

    def _start_again(self, killed: Sequence[str]) -> None:
        # A hub does not start without its database and its store.
        for part in sorted(killed, key=lambda each: each not in ("database", "store")):
            if part == "database":
                self._parts.database.start()
            elif part == "store":
                self._parts.store.start()
            elif part != "client":
                with self._starts:
                    self._killed.remove(part)
                    self._parts.start(part)
        for part in killed:
            if part in SERVERS:
                self._parts.wait_until_ready(part)

    def _finish(self, operation: Operation) -> None:
        """Do it again until it is acknowledged."""
        deadline = time.monotonic() + FINISH_S
        while not operation.end():
            assert time.monotonic() < deadline, (operation, self._parts.tails())
            time.sleep(0.5)
            operation.begin()
        self._save()

    def _check(self, chance: Random) -> None:
        """No part ended by itself, no job failed, and every acknowledged file is what it was."""
        assert self._ended == []
        failed = ask(self._hub, "GET", "/v1/jobs?state=failed").json()["items"]
        assert failed == [], (failed, self._parts.tails())
        files = self._workload.acknowledged.items()
        with ThreadPoolExecutor(_READERS) as readers:
            proofs = [readers.submit(prove, self._hub, *file, digest) for file, digest in files]
            for proof in proofs:
                proof.result()
        if chance.random() < 0.3:
            self._pull(*chance.choice([file for file, _ in files])[:2])

    def _pull(self, name: str, commit: str) -> None:
        """Pull a commit by our client with an empty cache, and compare what is known of it."""
        target = self._folder / "pulled" / f"{time.monotonic_ns()}"
        arguments = ("pull", f"{name}@{commit}", "--to", str(target), "--sha256")
        self._parts.run(*arguments, cwd=self._folder)
        for (of_name, of_commit, path), expected in self._workload.acknowledged.items():
            if (of_name, of_commit) == (name, commit):
                assert sha256((target / path).read_bytes()).hexdigest() == expected, (name, path)

    def _end(self) -> None:
        """Let all jobs end, check all that is stored, collect garbage, and prove everything."""
        chance = Random(f"{self.state.seed}-end")
        wait_for_all_jobs(self._hub)
        said = self._parts.operate("fsck", "--read-data")
        assert "clean" in said, said
        self._parts.operate("gc", "--apply", "--grace", "0")
        self._check(chance)
        for name, commit in sorted({file[:2] for file in self._workload.acknowledged})[-3:]:
            self._pull(name, commit)
        said = self._parts.operate("fsck", "--read-data")
        assert "clean" in said, said
        print(
            f"seed {self.state.seed}: {self.state.n_cycles} rounds, {self.state.n_kills} kills"
            f" ({self.state.n_killed}), {self._n_restarts} workers that began without a database"
            f" started again, {len(self._workload.acknowledged)} acknowledged files: none wrong",
            flush=True,
        )

    def _save(self) -> None:
        self.state.n_pushes = self._workload.n_pushes
        self.state.acknowledged = [
            (*file, digest) for file, digest in self._workload.acknowledged.items()
        ]
        self.state.save(self._folder)


def wait_for_all_jobs(hub: Hub) -> None:
    deadline = time.monotonic() + FINISH_S
    while any(
        ask(hub, "GET", f"/v1/jobs?state={state}").json()["items"]
        for state in ("queued", "running")
    ):
        assert time.monotonic() < deadline, "jobs do not come to an end"
        time.sleep(0.5)


def kill_leftovers(folder: Path) -> None:
    """Kill what a campaign that ended too early left: parts and clients work in its folder."""
    for each in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is somebody else's
            place = (each / "cwd").readlink() if each.name.isdecimal() else None
            if place is not None and place.is_relative_to(folder) and int(each.name) != os.getpid():
                os.kill(int(each.name), signal.SIGKILL)


def _dealt(cards: Sequence[_Card], seed: str, number: int) -> _Card:
    """The card of this number: all of them come, in a random order, before any comes again."""
    deck, at = divmod(number, len(cards))
    return Random(f"{seed}-{deck}").sample(cards, len(cards))[at]
