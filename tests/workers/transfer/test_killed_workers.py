"""The worker of a real hub is killed or told to stop in each phase of a move."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltahub.client.api.asking import RunningJob
from deltahub.client.errors import JobFailed
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.transfer.report import REPORT_FILE
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.maintenance.fsck.run import fsck
from support.adapters.place import Place
from support.registry.collecting import age_everything, collect
from support.transfer.place import transfer_place
from support.transfer.running import TRAINING

# How the stages begin in which the worker dies: generate, filter, label, train, evaluate, publish.
PHASES = ("make inputs up", "judge inputs", "answer ", "train the student", "measure trans_lora",
          "publish")  # fmt: skip
MOST_S = 300
# Longest time in which a cancelled move stops.
SECONDS = 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with transfer_place(tmp_path_factory.mktemp("killed"), "v2") as found:
        yield found


@pytest.fixture(scope="module")
def calm(place: Place) -> list[bytes]:
    """What an undisturbed move makes."""
    assert begin(place, "calm").wait().state == "done"
    return contents(place, "calm")


def begin(place: Place, name: str) -> RunningJob:
    asked: dict[str, Any] = {"rungs": ["trans_lora"], "n": 40, "max_loss": 1}
    training = TRAINING | {"epochs": 12}
    return place.ann.transfer_adapter("ann/teacher", "ann/v2", f"ann/{name}", **asked, **training)


def contents(place: Place, name: str) -> list[bytes]:
    """The files of a moved adapter, without what it cost, which is never the same twice."""
    files = []
    for path in (REPORT_FILE, CONFIG_FILE, WEIGHTS_FILE):
        answer = place.hub.call("GET", f"/ann/{name}/resolve/main/{path}", token=place.token)
        assert answer.status == 200, answer.body
        files.append(answer.body)
    report = json.loads(files[0])
    assert report["decision"]["is_published"]
    for each in report["rungs"]:
        each["cost"] = None
    report["summary"] = None
    return [json.dumps(report).encode(), *files[1:]]


def stage_of(place: Place, job_id: str) -> str:
    """What the running job does now; empty while it does nothing."""
    with place.hub.registry.db.read() as session:
        job = session.get_one(Job, job_id)
        assert job.state in ("queued", "running"), (job.state, job.error)
        return str((job.progress or {}).get("stage", ""))


def wait_for_stage(place: Place, job_id: str, phase: str) -> None:
    deadline = time.monotonic() + MOST_S
    while not stage_of(place, job_id).startswith(phase):
        assert time.monotonic() < deadline, phase
        time.sleep(0.002)


def status_of(place: Place, name: str) -> int:
    return place.hub.call("GET", f"/v1/repositories/ann/{name}", token=place.token).status


def objects(place: Place) -> set[str]:
    """What the store has after a garbage collection that is two days late."""
    age_everything(place.hub.registry, days=2)
    collect(place.hub.registry)
    return {each.key for each in place.hub.registry.store.list("")}


def compute_processes(place: Place) -> list[str]:
    """The command lines of processes that the worker has started."""
    worker = place.hub.worker
    assert worker is not None
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that ends meanwhile
            parent = (folder / "stat").read_text().rpartition(") ")[2].split()[1]
            if int(parent) == worker.pid:
                found.append((folder / "cmdline").read_text())
    return found


def test_a_worker_that_is_killed_in_each_phase_ends_with_the_same_files(
    place: Place, calm: list[bytes]
) -> None:
    worker = place.hub.worker
    assert worker is not None
    moving = begin(place, "killed")
    for phase in PHASES:
        wait_for_stage(place, moving.id, phase)
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while worker.pid in (pid, None):
            time.sleep(0.05)
    assert moving.wait().state == "done"
    assert contents(place, "killed") == calm
    assert list(fsck(place.hub.registry, read_data=True)) == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_move_leaves_nothing(place: Place, calm: list[bytes], phase: str) -> None:
    name = f"stopped-{PHASES.index(phase)}"
    before = objects(place)
    moving = begin(place, name)
    wait_for_stage(place, moving.id, phase)
    cancelled_at = time.monotonic()
    moving.cancel()
    while moving.refresh().state == "running":
        assert time.monotonic() - cancelled_at < SECONDS
        time.sleep(0.05)
    assert compute_processes(place) == []
    assert not place.hub.registry.job_folder(moving.id).exists()
    if moving.job.state == "done":  # it had published in that moment, and did so as a whole
        assert phase == "publish"
        assert contents(place, name) == calm
        return
    assert moving.job.state == "cancelled"
    assert status_of(place, name) == 404
    assert objects(place) <= before
    assert list(fsck(place.hub.registry, read_data=True)) == []


def test_a_cancelled_move_that_is_retried_gets_what_an_undisturbed_one_gets(
    place: Place, calm: list[bytes]
) -> None:
    moving = begin(place, "again")
    wait_for_stage(place, moving.id, "train the student")
    moving.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        moving.wait()
    moving.retry()
    assert moving.wait().state == "done"
    assert contents(place, "again") == calm
