"""Jobs survive their worker: each step once where nothing went wrong, at the step where it did."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltahub.registry import jobs
from deltahub.registry.db.models import Job
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

PROCESS = Path(__file__).parents[1] / "support" / "engine_process.py"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(Settings(data_dir=tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def start_worker(registry: Registry) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-W", "error", PROCESS, registry.data_dir])
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def enqueue(registry: Registry, kind: str, **payload: Any) -> str:
    with registry.db.write() as session:
        return jobs.enqueue(session, kind, payload)


def look(registry: Registry, job_id: str) -> Job:
    with registry.db.read() as session:
        return session.get_one(Job, job_id)


def wait_for(registry: Registry, job_id: str, *states: str) -> Job:
    deadline = time.monotonic() + 30
    while (job := look(registry, job_id)).state not in states:
        assert time.monotonic() < deadline, f"still {job.state}"
        time.sleep(0.02)
    return job


def steps(registry: Registry) -> list[str]:
    path = registry.data_dir / "steps"
    return path.read_text().split() if path.exists() else []


StartWorker = Callable[[], subprocess.Popen[bytes]]


def test_a_job_runs_each_step_once_and_leaves_its_result(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    job = wait_for(registry, enqueue(registry, "count", n=4), "done", "failed")
    assert (job.state, job.result) == ("done", {"total": 4})
    assert job.progress is not None
    assert job.progress["stage"] == "counting"
    assert job.started_at is not None
    assert job.finished_at is not None
    assert steps(registry) == ["0", "1", "2", "3"]


def test_a_job_whose_worker_was_killed_goes_on_at_the_step_in_hand(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "count", n=6, die_in=3)
    assert worker.wait(30) == -9
    assert look(registry, job_id).state == "running"
    assert steps(registry) == ["0", "1", "2"]
    start_worker()
    assert wait_for(registry, job_id, "done", "failed").result == {"total": 6}
    assert steps(registry) == ["0", "1", "2", "3", "4", "5"]


def test_jobs_run_one_at_a_time_oldest_first_also_after_a_kill(
    registry: Registry, start_worker: StartWorker
) -> None:
    first = enqueue(registry, "count", n=3, step_s=0.1, die_in=1)
    second = enqueue(registry, "count", n=1)
    start_worker().wait(30)
    start_worker()
    finished = [wait_for(registry, job_id, "done") for job_id in (first, second)]
    assert steps(registry) == ["0", "1", "2", "0"]
    moments = [job.finished_at for job in finished]
    assert moments == sorted(moment for moment in moments if moment is not None)


def test_a_stopped_worker_finishes_the_step_in_hand_and_the_next_one_the_job(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "count", n=4, step_s=0.4)
    wait_for(registry, job_id, "running")
    while not steps(registry):
        time.sleep(0.02)
    worker.terminate()
    assert worker.wait(10) == 0
    assert look(registry, job_id).state == "running"
    done_before = steps(registry)
    assert 0 < len(done_before) < 4
    start_worker()
    wait_for(registry, job_id, "done")
    assert steps(registry) == ["0", "1", "2", "3"]


def test_losing_the_engines_own_file_only_means_starting_over(
    registry: Registry, start_worker: StartWorker
) -> None:
    job_id = enqueue(registry, "count", n=3, die_in=2)
    start_worker().wait(30)
    for path in registry.data_dir.glob("jobs.sqlite*"):
        path.unlink()
    start_worker()
    assert wait_for(registry, job_id, "done").result == {"total": 3}
    assert steps(registry) == ["0", "1", "0", "1", "2"]


def test_a_refusal_fails_at_once_and_keeps_its_code(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    job = wait_for(registry, enqueue(registry, "refuse"), "failed", "done")
    assert (job.error_code, job.error) == ("storage_full", "no room for 7 bytes")
    assert steps(registry) == ["refused"]


def test_a_store_that_does_not_answer_is_asked_again(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    job = wait_for(registry, enqueue(registry, "flicker", n=2), "failed", "done")
    assert (job.state, job.result) == ("done", {"got": 1})
    assert steps(registry) == ["tried"] * 3


def test_a_bug_fails_its_job_and_not_the_worker(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    bad, unknown, good = (
        enqueue(registry, "broken", by=0),
        enqueue(registry, "no_such_kind"),
        enqueue(registry, "broken", by=1),
    )
    assert wait_for(registry, bad, "failed").error_code == "job_failed"
    assert "no_such_kind" in (wait_for(registry, unknown, "failed").error or "")
    assert wait_for(registry, good, "done").result == {"got": 1}


def test_a_cancelled_job_stops_between_steps_and_the_next_one_runs(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    job_id = enqueue(registry, "count", n=1000, step_s=0.05)
    after = enqueue(registry, "broken", by=1)
    wait_for(registry, job_id, "running")
    with registry.db.write() as session:
        session.get_one(Job, job_id).is_cancel_asked = True
    wait_for(registry, job_id, "cancelled")
    wait_for(registry, after, "done")
    n_steps = len(steps(registry))
    time.sleep(0.2)
    assert len(steps(registry)) == n_steps < 1000


def test_a_job_cancelled_while_it_waits_never_begins(
    registry: Registry, start_worker: StartWorker
) -> None:
    job_id = enqueue(registry, "count", n=1)
    with registry.db.write() as session:
        jobs.mark_cancelled(session, job_id)
    other = enqueue(registry, "broken", by=1)
    start_worker()
    wait_for(registry, other, "done")
    assert look(registry, job_id).state == "cancelled"
    assert steps(registry) == []


def test_nothing_in_the_engines_file_can_run_code(
    registry: Registry, start_worker: StartWorker
) -> None:
    start_worker()
    for kind in ("refuse", "count"):
        wait_for(registry, enqueue(registry, kind, n=1), "failed", "done")
    stored = b"".join(path.read_bytes() for path in registry.data_dir.glob("jobs.sqlite*"))
    assert b"py_pickle" not in stored
    assert b"deltahub_json" in stored


def test_a_second_worker_is_refused_and_told_who_holds_the_folder(
    registry: Registry, start_worker: StartWorker
) -> None:
    first = start_worker()
    wait_for(registry, enqueue(registry, "broken", by=1), "done")
    command = [sys.executable, "-m", "deltahub.workers", "--data-dir", str(registry.data_dir)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 3
    assert f"process {first.pid}" in second.stderr
    first.kill()
    first.wait()
    start_worker()
    wait_for(registry, enqueue(registry, "broken", by=1), "done")
