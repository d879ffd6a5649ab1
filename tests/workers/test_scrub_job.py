"""A worker proves stored bytes by itself, again and again, and puts a damaged pack back."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.settings import Settings
from deltahub.registry.storage.keys import pack_key
from support.registry.opened import caller
from support.registry.scrubbing import copies, findings, flip, proofs
from support.registry.small_hub import TUNE, SmallHub, fill

# Of 720 slices, one comes every 0.024 s. An object is due again after half of these 17 seconds.
DAYS = 0.0002


@pytest.mark.long
def test_every_object_is_proved_again_and_again_and_a_damaged_base_comes_back(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path / "data", scrub_days=DAYS, second_copy_dependents=1)
    with Registry.open(settings) as reg:
        ann = caller(reg, "ann")
        hub = SmallHub(reg, ann, fill(reg, ann))
        base = hub.pack_of("ann/base")
        variables = {
            "DELTAHUB_SCRUB_DAYS": str(DAYS),
            "DELTAHUB_SECOND_COPY_DEPENDENTS": "1",
        }
        command = [sys.executable, "-m", "deltahub.workers", "--data-dir", str(reg.data_dir)]
        worker = subprocess.Popen(command, env={**os.environ, **variables})
        try:
            wait(lambda: copies(reg) == {base: "live"})
            flip(reg, pack_key(base))
            wait(lambda: findings(reg) == {("pack", "pack_hash"): "repaired"})
            wait(lambda: {kind for kind, _ in proofs(reg)} >= {"pack", "copy"})
        finally:
            worker.terminate()
            worker.wait()
        assert hub.read("ann/tune") == TUNE
        with reg.db.read() as session:
            states = session.scalars(select(Job.state).where(Job.kind == "scrub")).all()
        assert set(states) <= {"done", "running", "queued"}
        assert states.count("done") > 0
        assert len(states) - states.count("done") <= 1


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
