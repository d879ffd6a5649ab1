"""Killed at any step, nothing that was acknowledged is lost and fsck finds nothing.

Half of the kills are at named failpoints, half at random moments of a real workload; each takes
the whole process group with SIGKILL. DELTAHUB_KILLS raises their number for a longer campaign.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deltahub.registry import failpoints
from deltahub.registry.entries import find_entry
from deltahub.registry.fsck import fsck
from deltahub.registry.refs import resolve_revision
from deltahub.registry.registry import Registry
from deltahub.registry.repositories import load_repository
from deltahub.registry.restore import Restorer
from deltahub.registry.settings import Settings
from support import tiny_models
from support.crash_workload import Journal, collect_all, run_jobs
from support.registry import caller

KILLS = int(os.environ.get("DELTAHUB_KILLS", "200"))
N_FAMILIES = 12

# A campaign is one test: minutes by nature, and more of them beside other tests.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for i in range(N_FAMILIES):
        kinds = {
            "base": tiny_models.base(i),
            "tuned": tiny_models.finetune(1e-5, i),
            "sent": tiny_models.finetune(1e-4, i),
        }
        for kind, tensors in kinds.items():
            data = tiny_models.to_file(tiny_models.cast(tensors, torch.bfloat16))
            (folder / f"{i}.{kind}").write_bytes(data)
    return folder


@dataclass
class Zygote:
    """Starts rounds of work that die where they are told to."""

    folder: Path
    process: subprocess.Popen[str]
    number: int = 0
    n_killed: int = 0

    def work(self, failpoint: str | None = None, kill_after_s: float | None = None) -> bool:
        """One round in a new process; whether it was killed."""
        request = {"number": self.number, "failpoint": failpoint, "kill_after_s": kill_after_s}
        self.number += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["killed"] or answer["status"] == 0, (request, answer)
        self.n_killed += answer["killed"]
        return bool(answer["killed"])


@contextmanager
def zygote(folder: Path, models: Path) -> Iterator[Zygote]:
    (folder / "models").symlink_to(models)
    (folder / "journal").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "support.crash_workload", str(folder)],
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
    restorer = Restorer(reg)
    who = caller(reg, "alice")
    for (name, path), sha256 in files.items():
        with reg.db.read() as session:
            repository = load_repository(session, who, name, "read")
            revision = resolve_revision(session, repository, "main")
            file = find_entry(session, revision, path).file
        digest = hashlib.sha256()
        for piece in restorer.stream_file(file, 0, file.size):
            digest.update(piece)
        assert digest.hexdigest() == sha256, f"{name}/{path}"


def test_kills_at_every_failpoint_lose_nothing(tmp_path: Path, models: Path) -> None:
    with zygote(tmp_path, models) as workers:
        reached = {name for name in failpoints.ALL if workers.work(name)}
        assert reached == set(failpoints.ALL)
        # Later hits of a place are in the middle of other steps.
        at = 2
        while workers.n_killed < KILLS // 2:
            for name in failpoints.ALL:
                workers.work(f"{name}:{at}")
            at += 1
        workers.work()
        assert check(tmp_path) > 0


def test_kills_at_random_moments_lose_nothing(tmp_path: Path, models: Path) -> None:
    chance = random.Random(7)
    with zygote(tmp_path, models) as workers:
        for _ in range(8):
            workers.work()
        while workers.n_killed < KILLS - KILLS // 2:
            workers.work(kill_after_s=chance.uniform(0.01, 1.5))
        workers.work()
        assert check(tmp_path) > 0
