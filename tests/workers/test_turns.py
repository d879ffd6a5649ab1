"""Turns: a long job of one user makes room for another user's jobs between its steps."""

import time
from collections.abc import Callable

import pytest

from deltahub.registry.jobs import requests
from deltahub.registry.registry import Registry
from support.forked import Fork
from support.registry.engine_jobs import enqueue, look, steps, wait_for
from support.registry.opened import caller

StartWorker = Callable[[], Fork]


def wait_until_begun(registry: Registry, job_id: str) -> None:
    deadline = time.monotonic() + 30
    while not steps(registry, job_id):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def ann(registry: Registry) -> int:
    return caller(registry, "ann").user_id


@pytest.fixture
def bob(registry: Registry) -> int:
    return caller(registry, "bob").user_id


def test_a_long_job_of_one_user_does_not_delay_another_users_job_to_its_end(
    registry: Registry, start_worker: StartWorker, ann: int, bob: int
) -> None:
    start_worker()
    long = enqueue(registry, "count", user_id=ann, n=60, step_s=0.1)
    wait_until_begun(registry, long)
    short = enqueue(registry, "count", user_id=bob, n=1)
    finished_at = wait_for(registry, short, "done").finished_at
    job = wait_for(registry, long, "done")
    assert job.result == {"total": sum(len(str(i)) for i in range(60))}
    assert finished_at is not None
    assert job.finished_at is not None
    assert finished_at < job.finished_at
    assert steps(registry, long) == [str(i) for i in range(60)]  # each step ran once


def test_two_long_jobs_of_two_users_go_on_in_turns(
    registry: Registry, start_worker: StartWorker, ann: int, bob: int
) -> None:
    start_worker()
    first = enqueue(registry, "count", user_id=ann, n=12, step_s=0.15)
    wait_until_begun(registry, first)
    second = enqueue(registry, "count", user_id=bob, n=12, step_s=0.15)
    wait_until_begun(registry, second)
    assert len(steps(registry, first)) < 12
    wait_for(registry, first, "done")
    assert len(steps(registry, second)) > 2
    wait_for(registry, second, "done")
    for job_id in (first, second):
        assert steps(registry, job_id) == [str(i) for i in range(12)]


def test_a_job_that_made_room_goes_on_at_its_step_after_a_kill(
    registry: Registry, start_worker: StartWorker, ann: int, bob: int
) -> None:
    worker = start_worker()
    first = enqueue(registry, "count", user_id=ann, n=10, step_s=0.15)
    wait_until_begun(registry, first)
    second = enqueue(registry, "count", user_id=bob, n=10, step_s=0.15, die_in=1)
    assert worker.wait(30) == -9
    assert look(registry, first).state == "queued"
    assert look(registry, first).started_at is not None
    start_worker()
    for job_id in (first, second):
        wait_for(registry, job_id, "done", "failed")
        assert steps(registry, job_id) == [str(i) for i in range(10)]


def test_a_job_that_made_room_is_cancelled_at_once(
    registry: Registry, start_worker: StartWorker, ann: int, bob: int
) -> None:
    start_worker()
    first = enqueue(registry, "count", user_id=ann, n=1000, step_s=0.1)
    wait_until_begun(registry, first)
    second = enqueue(registry, "count", user_id=bob, n=3, step_s=1.0)
    wait_for(registry, second, "running")
    assert requests.cancel_job(registry, caller(registry, "ann"), first).state == "cancelled"
    assert wait_for(registry, second, "done").result is not None
    after = enqueue(registry, "count", user_id=ann, n=1)
    wait_for(registry, after, "done")
    assert len(steps(registry, first)) < 1000
