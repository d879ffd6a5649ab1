"""Several workers on one PostgreSQL: each job runs once, and goes on when its worker dies."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.data_folder import WORKER_LOCK
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue, requests
from deltahub.registry.leases import lease
from deltahub.registry.leases.lease import HeldLease
from support.forked import Fork
from support.registry.engine_jobs import enqueue, launch, look, steps, wait_for
from support.registry.opened import caller

StartWorker = Callable[[], Fork]


@pytest.fixture
def start_worker(reg: Registry) -> Iterator[StartWorker]:
    started: list[Fork] = []

    def start() -> Fork:
        before = workers(reg)
        started.append(launch(reg))
        deadline = time.monotonic() + 60
        while workers(reg) <= before:
            assert time.monotonic() < deadline, "the worker does not start"
            time.sleep(0.05)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def workers(reg: Registry) -> set[str]:
    with reg.db.read() as session:
        return {each.id for each in lease.live(session, WORKER_LOCK) if each.looked_at}


def test_jobs_of_two_workers_run_once_each(reg: Registry, start_worker: StartWorker) -> None:
    jobs = [enqueue(reg, "count", n=3, step_s=0.05) for _ in range(12)]
    for _ in range(2):
        start_worker()
    for job_id in jobs:
        assert wait_for(reg, job_id, "done", "failed").result == {"total": 3}
        assert steps(reg, job_id) == ["0", "1", "2"]


def test_the_job_of_a_killed_worker_goes_on_in_another_within_ten_seconds(
    reg: Registry, start_worker: StartWorker
) -> None:
    first = start_worker()
    job_id = enqueue(reg, "count", n=6, die_in=3)
    assert first.wait(30) == -9
    second = start_worker()
    began = time.monotonic()
    job = wait_for(reg, job_id, "done", "failed")
    assert time.monotonic() - began < 10
    assert job.result == {"total": 6}
    assert steps(reg, job_id) == ["0", "1", "2", "3", "4", "5"]
    assert second.poll() is None


def test_a_worker_that_wakes_up_after_its_death_changes_nothing(
    reg: Registry, start_worker: StartWorker
) -> None:
    first = start_worker()
    job_id = enqueue(reg, "count", n=40, step_s=0.2)
    wait_for(reg, job_id, "running")
    while len(steps(reg, job_id)) < 3:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGSTOP)
    start_worker()
    old_owner = look(reg, job_id).worker_id
    deadline = time.monotonic() + 20
    while look(reg, job_id).worker_id in (old_owner, None):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(20) == 1  # it finds that its lease is gone
    assert wait_for(reg, job_id, "done", "failed").result == {"total": 70}
    # The step in hand at the stop ran in both.
    assert sorted(set(map(int, steps(reg, job_id)))) == list(range(40))
    assert len(steps(reg, job_id)) <= 42


def test_a_worker_that_ends_hands_its_job_on_at_once(
    reg: Registry, start_worker: StartWorker
) -> None:
    first = start_worker()
    job_id = enqueue(reg, "count", n=20, step_s=0.2)
    wait_for(reg, job_id, "running")
    start_worker()
    first.terminate()
    assert first.wait(30) == 0
    job = wait_for(reg, job_id, "done", "failed")
    assert (job.result, job.n_deaths) == ({"total": 30}, 0)
    assert steps(reg, job_id) == [str(n) for n in range(20)]


def test_a_worker_survives_the_death_of_its_database_connections(
    reg: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(reg, "count", n=20, step_s=0.1)
    wait_for(reg, job_id, "running")
    cut = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    )
    with reg.db.write() as session:
        session.execute(cut)
    assert wait_for(reg, job_id, "done", "failed").result == {"total": 30}
    assert worker.poll() is None


def test_no_workflow_and_no_lease_is_left(reg: Registry, start_worker: StartWorker) -> None:
    worker = start_worker()
    wait_for(reg, enqueue(reg, "count", n=2), "done")
    count = text("SELECT count(*) FROM dbos.workflow_status")
    deadline = time.monotonic() + 30
    while True:
        with reg.db.read() as session:
            if session.scalar(count) == 0:
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    worker.terminate()
    assert worker.wait(30) == 0
    assert workers(reg) == set()
    with reg.db.read() as session:
        assert session.query(Job).filter(Job.worker_id.is_not(None)).count() == 0


def test_a_job_says_which_worker_it_waits_for(reg: Registry, start_worker: StartWorker) -> None:
    ann = caller(reg, "waiting")
    with reg.db.write() as session:
        job_id = queue.enqueue(session, "count", {"n": 1}, user_id=ann.user_id, lane=queue.GPU)
    with HeldLease(
        reg.db, WORKER_LOCK, "deltahub worker", is_shared=True, about={"queues": ["io", "cpu"]}
    ) as held:
        held.mark_looked()
        deadline = time.monotonic() + 20
        while not workers(reg):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        waits_for = requests.get_job(reg, ann, job_id).waits_for
    assert waits_for is not None
    assert "deltahub worker --queues gpu" in waits_for
