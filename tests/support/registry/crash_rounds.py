"""Starts rounds of crash_workload.py that die where they are told to, and checks what they left."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.models import tiny_models
from support.registry.crash_workload import Journal, collect_all, run_jobs
from support.registry.opened import caller

N_TRAINED = 2
# Two weights, of which fine-tunes are deltas, and a bias too small for that: what a round costs
# grows with the number of tensors, not with their sizes, and three are several parts of a pack.
TENSORS = ("embedding.weight", "head.weight", "down.bias")


def write_models(folder: Path, n_families: int) -> None:
    """The models that rounds push: round after round those of the next family."""
    for i in range(n_families):
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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
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
