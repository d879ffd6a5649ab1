"""A damaged jobs.sqlite costs time alone: it is set aside, and unfinished jobs start over."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deltahub.registry.registry import Registry
from support.forked import Fork
from support.registry.engine_jobs import enqueue, steps, wait_for

StartWorker = Callable[[], Fork]


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"no database at all, " * 500)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero_pages(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(bytes(4096))


def drop_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE operation_outputs")
    connection.execute("DROP TABLE workflow_status")
    connection.commit()
    connection.close()


DAMAGES = [overwrite_all, cut, zero_pages, drop_table]


def checkpoint(path: Path) -> None:
    """Move the write-ahead log into the file, so that damage to the file counts."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside_and_unfinished_jobs_start_over(
    registry: Registry, start_worker: StartWorker, damage: Callable[[Path], None]
) -> None:
    job_id = enqueue(registry, "count", n=3, die_in=2)
    start_worker().wait(30)
    path = registry.data_dir / "jobs.sqlite"
    checkpoint(path)
    damage(path)
    damaged = path.read_bytes()
    start_worker()
    assert wait_for(registry, job_id, "done", "failed").result == {"total": 3}
    assert steps(registry, job_id)[:2] == ["0", "1"]
    assert steps(registry, job_id)[-3:] == ["0", "1", "2"]
    (kept,) = registry.data_dir.glob("jobs.sqlite.damaged-*Z")
    if damage is not drop_table:  # DBOS may have written to that file before it failed
        assert kept.read_bytes() == damaged
    after = enqueue(registry, "count", n=1)
    assert wait_for(registry, after, "done", "failed").state == "done"


def test_a_file_that_is_damaged_under_a_running_worker_is_set_aside(
    registry: Registry, start_worker: StartWorker
) -> None:
    worker = start_worker()
    job_id = enqueue(registry, "count", n=100, step_s=0.05)
    wait_for(registry, job_id, "running")
    path = registry.data_dir / "jobs.sqlite"
    deadline = time.monotonic() + 30
    while worker.poll() is None:
        assert time.monotonic() < deadline
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("DROP TABLE IF EXISTS operation_outputs")
        connection.commit()
        connection.close()
        time.sleep(0.1)
    assert worker.returncode == 1
    assert list(registry.data_dir.glob("jobs.sqlite.damaged-*Z"))
    start_worker()
    job = wait_for(registry, job_id, "done", "failed")
    assert (job.state, job.attempts) == ("done", 1)


def test_a_changed_record_of_a_step_starts_its_job_over(
    registry: Registry, start_worker: StartWorker
) -> None:
    job_id = enqueue(registry, "count", n=3, die_in=2)
    start_worker().wait(30)
    connection = sqlite3.connect(registry.data_dir / "jobs.sqlite")
    changed = connection.execute(
        "UPDATE operation_outputs SET output = replace(output, '1}', '9}')"
    )
    assert changed.rowcount == 2
    connection.commit()
    connection.close()
    start_worker()
    job = wait_for(registry, job_id, "done", "failed")
    assert (job.state, job.result, job.attempts) == ("done", {"total": 3}, 1)
    assert steps(registry, job_id) == ["0", "1", "0", "1", "2"]
