"""Killed at any step, nothing that was acknowledged is lost and fsck finds nothing.

Every named failpoint kills once. Of the other kills a third are at later hits of failpoints, the
rest at random moments of a real workload; each takes the whole process group with SIGKILL. They
are dealt out to campaigns, each with a data folder of its own, that run side by side.
DELTAHUB_KILLS raises the number for longer ones.
"""

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deltahub.registry import failpoints
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.models import tiny_models
from support.registry.crash_workload import ROUNDS_KEPT, Journal, collect_all, run_jobs
from support.registry.opened import caller

KILLS = int(os.environ.get("DELTAHUB_KILLS", "100"))
# Kills at the others are in tests/registry/reencode/withdraw and tests/registry/maintenance.
ELSEWHERE = (
    "withdraw.",
    "repair.",
    "backup.",
    "restore.",
    "deferred.",
    "move.",
    "salvage.",
    "scrub.",
    "copies.",
)
POINTS = [name for name in failpoints.ALL if not name.startswith(ELSEWHERE)]
MORE_KILLS = max(KILLS - len(POINTS), 0)
LATER_KILLS = MORE_KILLS // 3
RANDOM_KILLS = MORE_KILLS - LATER_KILLS
N_FAMILIES, N_TRAINED = 12, 2
# As many as there are cores: each begins with the start of a process and ends with two rounds that
# nobody kills and a check of everything.
FAILPOINT_CAMPAIGNS = 2
# Two weights, of which fine-tunes are deltas, and a bias too small for that: what a round costs
# grows with the number of tensors, not with their sizes, and three are several parts of a pack.
TENSORS = ("embedding.weight", "head.weight", "down.bias")

# A campaign is one test: minutes by nature, and more of them beside other tests.
pytestmark = [pytest.mark.long, pytest.mark.campaign, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for i in range(N_FAMILIES):
        seed, n_rolled = i % N_TRAINED, i // N_TRAINED
        kinds = {
            "base": tiny_models.base(seed),
            "tuned": tiny_models.finetune(1e-5, seed),
            "sent": tiny_models.finetune(1e-4, seed),
        }
        for kind, tensors in kinds.items():
            # What has moved by a word is no relative, word for word, of what stayed.
            kept = {name: tensors[name].flatten().roll(n_rolled).view_as(tensors[name])
                    for name in TENSORS}  # fmt: skip
            data = tiny_models.to_file(tiny_models.cast(kept, torch.bfloat16))
            (folder / f"{i}.{kind}").write_bytes(data)
    return folder


@dataclass
class Zygote:
    """Starts rounds of work that die where they are told to."""

    folder: Path
    process: subprocess.Popen[str]
    number: int = 0
    n_killed: int = 0

    def work(
        self,
        failpoint: str | None = None,
        kill_after_s: float | None = None,
        is_counted: bool = False,
    ) -> bool:
        """One round in a new process; whether it was killed."""
        request = {
            "number": self.number,
            "failpoint": failpoint,
            "kill_after_s": kill_after_s,
            "is_counted": is_counted,
        }
        self.number += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["killed"] or answer["status"] == 0, (request, answer)
        self.n_killed += answer["killed"]
        return bool(answer["killed"])

    def count_hits(self) -> dict[str, int]:
        """How often a round that nobody kills passes each failpoint."""
        assert not self.work(is_counted=True)
        hits: dict[str, int] = json.loads((self.folder / "hits").read_text())
        return hits


@contextmanager
def zygote(folder: Path, models: Path) -> Iterator[Zygote]:
    (folder / "models").symlink_to(models)
    (folder / "journal").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "support.registry.crash_workload", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    with process:
        yield Zygote(folder, process)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def check(folder: Path) -> int:
    """Every acknowledged file comes back bit for bit, and fsck finds nothing; how many files."""
    with Registry.open(Settings(data_dir=folder / "data")) as reg:
        acknowledged = Journal(folder / "journal").acknowledged()
        assert_readable(reg, acknowledged)
        run_jobs(reg)
        collect_all(reg)
        assert_readable(reg, acknowledged)
        assert list(fsck(reg, read_data=True)) == []
    return len(acknowledged)


def assert_readable(reg: Registry, files: dict[tuple[str, str], str]) -> None:
    reader = FileReader(reg)
    who = caller(reg, "alice")
    for (name, path), sha256 in files.items():
        with reg.db.read() as session:
            repository = load_repository(session, who, name, "read")
            revision = resolve_revision(session, repository, "main")
            file = find_entry(session, revision, path).file
        digest = hashlib.sha256()
        for piece in reader.stream_file(file, 0, file.size):
            digest.update(piece)
        assert digest.hexdigest() == sha256, f"{name}/{path}"


def share_of(n: int, share: int, n_shares: int) -> int:
    """n things dealt out: how many of them this share has."""
    return len(range(n)[share::n_shares])


@pytest.mark.parametrize("share", range(FAILPOINT_CAMPAIGNS))
def test_kills_at_every_failpoint_lose_nothing(tmp_path: Path, models: Path, share: int) -> None:
    names = POINTS[share::FAILPOINT_CAMPAIGNS]
    n_kills = len(names) + share_of(LATER_KILLS, share, FAILPOINT_CAMPAIGNS)
    with zygote(tmp_path, models) as workers:
        left = list(names)
        for _ in range(3):  # what one round has nothing to do for, a later one has
            left = [name for name in left if not workers.work(name)]
        assert left == []
        # Later hits of a place are in the middle of other steps.
        hits = workers.count_hits()
        later = [(at, name) for name in names for at in range(2, hits.get(name, 0) + 1)]
        random.Random(share).shuffle(later)
        for at, name in itertools.cycle(later):
            if workers.n_killed >= n_kills:
                break
            workers.work(f"{name}:{at}")
        assert workers.n_killed == n_kills
        workers.work()
        assert check(tmp_path) > 0


def test_kills_at_random_moments_lose_nothing(tmp_path: Path, models: Path) -> None:
    chance = random.Random(7)
    with zygote(tmp_path, models) as workers:
        for _ in range(ROUNDS_KEPT + 1):
            begun = time.monotonic()
            workers.work()
            round_s = time.monotonic() - begun
        while workers.n_killed < RANDOM_KILLS:
            # A round begins with what the one before has left; few would live to the end.
            workers.work(kill_after_s=chance.uniform(0.01, 0.6 * round_s))
        workers.work()
        assert check(tmp_path) > 0
