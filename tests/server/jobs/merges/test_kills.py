"""The worker of a real hub is killed again and again while it merges; nothing shows in the end."""

import os
import signal
import time

from support.merging.family import Family
from support.merging.running import PATH


def files_of(family: Family, name: str) -> list[bytes]:
    found = []
    for ref in ("main", "task0", "task1", "task2"):
        answer = family.hub.call("GET", f"/{name}/resolve/{ref}/{PATH}")
        assert answer.status == 200
        found.append(answer.body)
    return found


def test_a_worker_that_is_killed_in_each_stage_ends_with_the_same_bytes(family: Family) -> None:
    family.ann.merge(family.models, base="ann/base", name="ann/calm").wait()
    worker = family.hub.worker
    assert worker is not None
    running = family.ann.merge(family.models, base="ann/base", name="ann/killed")
    seen: set[str] = set()
    deadline = time.monotonic() + 120
    while not running.refresh().is_over:
        assert time.monotonic() < deadline
        stage = str((running.job.progress or {}).get("stage", ""))
        pid = worker.pid
        if running.job.state == "running" and stage not in seen and pid and len(seen) < 5:
            seen.add(stage)
            os.kill(pid, signal.SIGKILL)
            while worker.pid in (pid, None):
                time.sleep(0.05)
        time.sleep(0.01)
    assert running.job.state == "done"
    assert seen
    assert files_of(family, "ann/killed") == files_of(family, "ann/calm")
