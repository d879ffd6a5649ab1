"""Jobs survive their worker: they resume at the interrupted step, and finished steps run once."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.registry.registry import Registry
from support.forked import Fork
from support.registry.engine_jobs import enqueue, look, steps, wait_for

StartWorker = Callable[[], Fork]


def test_a_job_runs_each_step_once_and_leaves_its_result(working: Registry) -> None:
    job = wait_for(working, enqueue(working, "count", n=4), "done", "failed")
    assert (job.state, job.result) == ("done", {"total": 4})
    assert job.progress is not None
    assert job.progress["stage"] == "counting"
    assert job.started_at is not None
    assert job.finished_at is not None
    assert steps(working, job.id) == ["0", "1", "2", "3"]


def test_a_job_whose_worker_was_killed_goes_on_at_the_step_in_hand(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "count", n=6, die_in=3)
    assert worker.wait(30) == -9
    assert look(registry, job_id).state == "running"
    assert steps(registry, job_id) == ["0", "1", "2"]
    start_worker()
    assert wait_for(registry, job_id, "done", "failed").result == {"total": 6}
    assert steps(registry, job_id) == ["0", "1", "2", "3", "4", "5"]


def test_jobs_run_one_at_a_time_also_after_a_kill(
    registry: Registry, start_worker: StartWorker
) -> None:
    first = enqueue(registry, "count", n=3, step_s=0.1, die_in=1)
    second = enqueue(registry, "count", n=1)
    start_worker().wait(30)
    start_worker()
    finished = [wait_for(registry, job_id, "done") for job_id in (first, second)]
    assert steps(registry, first) == ["0", "1", "2"]
    assert steps(registry, second) == ["0"]
    moments = [job.finished_at for job in finished]
    assert moments == sorted(moment for moment in moments if moment is not None)


def test_a_stopped_worker_finishes_the_step_in_hand_and_the_next_one_the_job(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "count", n=4, step_s=0.4)
    wait_for(registry, job_id, "running")
    while not steps(registry, job_id):
        time.sleep(0.02)
    worker.terminate()
    assert worker.wait(10) == 0
    assert look(registry, job_id).state == "running"
    done_before = steps(registry, job_id)
    assert 0 < len(done_before) < 4
    start_worker()
    wait_for(registry, job_id, "done")
    assert steps(registry, job_id) == ["0", "1", "2", "3"]


def test_a_job_that_kills_every_worker_is_given_up(
    registry: Registry, start_worker: StartWorker
) -> None:
    poison = enqueue(registry, "poison")
    after = enqueue(registry, "broken", by=1)
    for _ in range(8):
        worker = start_worker()
        while worker.poll() is None and look(registry, after).state != "done":
            time.sleep(0.02)
        if look(registry, after).state == "done":
            break
    job = wait_for(registry, poison, "failed")
    assert job.error_code == "job_failed"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_worker_with_nothing_to_do_ends_the_threads_that_look_for_it(
    registry: Registry, start_worker: StartWorker
) -> None:
    resumed = enqueue(registry, "count", n=3, die_in=1)
    start_worker().wait(30)
    worker = start_worker()
    wait_for(registry, resumed, "done")
    most = n_threads(worker)
    end = time.monotonic() + 30
    while n_threads(worker) > most - 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    # The worker still starts jobs, and the next worker resumes them.
    after = enqueue(registry, "count", n=2, die_in=1)
    assert worker.wait(30) == -9
    start_worker()
    assert wait_for(registry, after, "done").result == {"total": 2}
    assert steps(registry, after) == ["0", "1"]


def n_threads(process: Fork) -> int:
    return len(list(Path(f"/proc/{process.pid}/task").iterdir()))


def test_losing_the_engines_own_file_only_means_starting_over(
    registry: Registry, start_worker: StartWorker
) -> None:
    job_id = enqueue(registry, "count", n=3, die_in=2)
    start_worker().wait(30)
    for path in registry.data_dir.glob("jobs.sqlite*"):
        path.unlink()
    start_worker()
    assert wait_for(registry, job_id, "done").result == {"total": 3}
    assert steps(registry, job_id) == ["0", "1", "0", "1", "2"]


@pytest.mark.parametrize(
    ("kind", "expected"), [("count", ["0", "1", "0", "1", "2"]), ("tally", ["0", "1", "2"])]
)
def test_new_steps_of_a_kind_start_its_unfinished_jobs_over_and_no_others(
    registry: Registry, start_worker: StartWorker, kind: str, expected: list[str]
) -> None:
    job_id = enqueue(registry, kind, n=3, die_in=2)
    assert start_worker().wait(30) == -9
    (registry.data_dir / "new-steps-of-count").touch()
    start_worker()
    assert wait_for(registry, job_id, "done").result == {"total": 3}
    assert steps(registry, job_id) == expected


def test_a_refusal_fails_at_once_and_keeps_its_code(working: Registry) -> None:
    job = wait_for(working, enqueue(working, "refuse"), "failed", "done")
    assert (job.error_code, job.error) == ("hash_mismatch", "the file has another SHA-256")
    assert steps(working, job.id) == ["refused"]


def test_a_store_that_does_not_answer_is_asked_again(working: Registry) -> None:
    job = wait_for(working, enqueue(working, "flicker", n=2), "failed", "done")
    assert (job.state, job.result) == ("done", {"got": 1})
    assert steps(working, job.id) == ["tried"] * 3


def test_a_bug_fails_its_job_and_not_the_worker(working: Registry) -> None:
    bad, unknown, good = (
        enqueue(working, "broken", by=0),
        enqueue(working, "no_such_kind"),
        enqueue(working, "broken", by=1),
    )
    assert wait_for(working, bad, "failed").error_code == "job_failed"
    assert "no_such_kind" in (wait_for(working, unknown, "failed").error or "")
    assert wait_for(working, good, "done").result == {"got": 1}


def test_a_cancelled_job_stops_between_steps_and_the_next_one_runs(working: Registry) -> None:
    job_id = enqueue(working, "count", n=1000, step_s=0.05)
    after = enqueue(working, "broken", by=1)
    wait_for(working, job_id, "running")
    with working.db.write() as session:
        session.get_one(Job, job_id).is_cancel_asked = True
    wait_for(working, job_id, "cancelled")
    wait_for(working, after, "done")
    n_steps = len(steps(working, job_id))
    time.sleep(0.2)
    assert len(steps(working, job_id)) == n_steps < 1000


def test_a_job_cancelled_while_it_waits_never_begins(working: Registry) -> None:
    with working.db.write() as session:
        job_id = queue.enqueue(session, "count", {"n": 1})
        queue.mark_cancelled(session, job_id)
    other = enqueue(working, "broken", by=1)
    wait_for(working, other, "done")
    assert look(working, job_id).state == "cancelled"
    assert steps(working, job_id) == []


def test_nothing_in_the_engines_file_can_run_code(working: Registry) -> None:
    for kind in ("refuse", "count"):
        wait_for(working, enqueue(working, kind, n=1), "failed", "done")
    stored = b"".join(path.read_bytes() for path in working.data_dir.glob("jobs.sqlite*"))
    assert b"py_pickle" not in stored
    assert b"deltahub_json" in stored


def test_a_second_worker_is_refused_and_told_who_holds_the_folder(working: Registry) -> None:
    wait_for(working, enqueue(working, "broken", by=1), "done")
    command = [sys.executable, "-m", "deltahub.workers", "--data-dir", str(working.data_dir)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 3
    pid, _, command = (working.data_dir / "worker.lock").read_text().strip().partition(" ")
    assert f"process {pid}, `{command}`" in second.stderr
    assert command == "deltahub worker"
    wait_for(working, enqueue(working, "broken", by=1), "done")
