"""A hub, its worker, its gc and its clients are killed again and again while real clients push.

DELTAHUB_KILLS=300 runs 300 cycles; DELTAHUB_SEED draws the same pushes, victims and pauses again.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from deltahub.registry.jobs.queue import next_queued, running
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.service.hub import ServedHub, served_hub
from support.service.workload import Workload, wrong_files

CYCLES = int(os.environ.get("DELTAHUB_KILLS", "6"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
TIMEOUT_S = 120

VICTIMS = ("client", "hub", "hub", "worker", "worker", "gc", "nobody")


@pytest.mark.long
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"DELTAHUB_SEED={SEED} DELTAHUB_KILLS={CYCLES}")
    monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    chance = random.Random(SEED)
    workload = Workload(tmp_path, chance)
    data_dir, token = tmp_path / "data", ""
    with (tmp_path / "hub.log").open("wb") as log, ExitStack() as stack:
        hub: ServedHub | None = None
        for _ in range(CYCLES):
            if hub is None or hub.process.poll() is not None:
                hub = stack.enter_context(served_hub(data_dir, token=token, log=log))
                token = hub.admin_token
            push_and_kill(hub, workload, chance.choice(VICTIMS), chance)
    with served_hub(data_dir, token=token) as hub:
        wait_for_all_jobs(data_dir)
        assert workload.start(hub).end()
        assert list(wrong_files(hub, tmp_path / "read", workload.acknowledged)) == []
        wait_for_all_jobs(data_dir)
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        assert list(fsck(reg, read_data=True)) == []
    print(f"{len(workload.acknowledged)} acknowledged files, each read by every door: none wrong")


def push_and_kill(hub: ServedHub, workload: Workload, victim: str, chance: random.Random) -> None:
    """Begin a push, and kill the victim at a random moment."""
    upload = workload.start(hub)
    time.sleep(chance.uniform(0.3, 4))
    if victim == "client":
        upload.kill()
    elif victim == "hub":
        hub.kill_all()
    elif victim == "worker":
        for pid in worker_pids(hub):
            os.kill(pid, signal.SIGKILL)
    elif victim == "gc":
        collect_and_kill(hub, chance)
    upload.end()


def worker_pids(hub: ServedHub) -> list[int]:
    children = Path(f"/proc/{hub.process.pid}/task/{hub.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def collect_and_kill(hub: ServedHub, chance: random.Random) -> None:
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


def wait_for_all_jobs(data_dir: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with Registry.open(Settings(data_dir=data_dir)) as reg:
        while True:
            with reg.db.read() as session:
                if not running(session) and not next_queued(session):
                    return
            assert time.monotonic() < deadline, "jobs do not come to an end"
            time.sleep(0.1)
