"""Jobs that fail for a moment are repeated until they succeed; all others fail at once."""

import time
from collections.abc import Callable

import pytest

from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import requests
from deltahub.registry.registry import Registry
from support.forked import Fork
from support.registry.engine_jobs import enqueue, look, steps, wait_for
from support.registry.opened import caller

StartWorker = Callable[[], Fork]


def wait_for_attempts(registry: Registry, job_id: str, n_attempts: int) -> Job:
    deadline = time.monotonic() + 30
    while (job := look(registry, job_id)).attempts < n_attempts or job.state != "queued":
        assert time.monotonic() < deadline, f"{job.attempts} attempts, {job.state}"
        time.sleep(0.02)
    return job


def give_enough(registry: Registry, job_id: str) -> None:
    (registry.data_dir / f"enough-{job_id}").touch()


def retry_now(registry: Registry, job_id: str) -> None:
    with registry.db.write() as session:
        session.get_one(Job, job_id).retry_at = None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("store_full", "storage_full"),
        ("storage_full", "storage_full"),
        ("no_space", "storage_full"),
        ("store_unavailable", "unavailable"),
        ("unavailable", "unavailable"),
        ("io_error", "unavailable"),
        ("memory", "unavailable"),
    ],
)
def test_a_job_waits_out_what_passes_by_itself(working: Registry, error: str, code: str) -> None:
    job_id = enqueue(working, "lack", error=error)
    job = wait_for_attempts(working, job_id, 1)
    assert job.error_code == code
    assert job.error
    give_enough(working, job_id)
    retry_now(working, job_id)
    job = wait_for(working, job_id, "done", "failed")
    assert (job.state, job.error_code, job.error) == ("done", None, None)
    assert steps(working, job_id)[-2:] == ["first", "second"]


def test_what_passes_by_itself_between_two_steps_is_waited_out_too(working: Registry) -> None:
    job_id = enqueue(working, "lack", error="unavailable", between_steps=True)
    assert wait_for_attempts(working, job_id, 1).error_code == "unavailable"
    give_enough(working, job_id)
    retry_now(working, job_id)
    assert wait_for(working, job_id, "done", "failed").state == "done"


def test_other_jobs_run_while_a_job_waits_to_be_repeated(working: Registry) -> None:
    waiting = enqueue(working, "lack", error="store_full")
    wait_for_attempts(working, waiting, 3)
    other = enqueue(working, "count", n=1)
    assert wait_for(working, other, "done", "failed").state == "done"
    assert look(working, waiting).state in ("queued", "running")
    admin = caller(working, "root", is_admin=True)
    requests.cancel_job(working, admin, waiting)
    wait_for(working, waiting, "cancelled")


def test_a_job_that_waits_to_be_repeated_survives_its_worker(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "lack", error="store_full")
    wait_for_attempts(registry, job_id, 1)
    worker.kill()
    worker.wait()
    give_enough(registry, job_id)
    retry_now(registry, job_id)
    start_worker()
    assert wait_for(registry, job_id, "done", "failed").state == "done"


def test_the_worker_survives_a_full_disk_of_its_own_files(
    registry: Registry, start_worker: StartWorker
) -> None:
    limit = registry.data_dir / "small-engine-file"
    limit.touch()
    worker = start_worker()
    job_id = enqueue(registry, "hoard", n=40)
    job = wait_for_attempts(registry, job_id, 1)
    assert job.error_code == "storage_full"
    assert "jobs.sqlite" in (job.error or "")
    other = enqueue(registry, "count", n=1)
    wait_for(registry, other, "done")
    worker.kill()
    worker.wait()
    limit.unlink()
    retry_now(registry, job_id)
    start_worker()
    assert wait_for(registry, job_id, "done", "failed").state == "done"
