"""Health says which part of the hub does not work, with a status that monitors understand."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry.leases import signs_of_life
from deltahub.server.settings import ServerSettings
from support.service.hub import Answer, RunningHub, running_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    settings = ServerSettings(store_check_interval_s=0.1, stop_grace_s=2)
    with running_hub(tmp_path / "data", server_settings=settings) as running:
        yield running


def test_a_hub_whose_worker_looks_for_jobs_is_well(hub: RunningHub) -> None:
    signs_of_life.mark_seen(hub.registry)
    answer = hub.call("GET", "/v1/health")
    assert answer.status == 200
    assert (answer.json()["status"], answer.json()["problems"]) == ("ok", [])


def test_a_hub_without_a_worker_is_degraded_and_still_live(hub: RunningHub) -> None:
    answer = hub.call("GET", "/v1/health")
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    (problem,) = answer.json()["problems"]
    assert problem["part"] == "worker"
    assert "no worker runs on this hub" in problem["message"]
    live = hub.call("GET", "/v1/health/live")
    assert (live.status, live.json()["status"]) == (200, "ok")


def test_a_hub_that_starts_its_own_worker_is_well_from_the_start(tmp_path: Path) -> None:
    with running_hub(tmp_path / "own", with_worker=True) as hub:
        answer = hub.call("GET", "/v1/health")
        assert (answer.status, answer.json()["problems"]) == (200, [])


def test_a_hub_whose_objects_are_not_there_is_degraded(hub: RunningHub) -> None:
    signs_of_life.mark_seen(hub.registry)
    objects = hub.data_dir / "objects"
    objects.rename(hub.data_dir / "elsewhere")
    answer = wait_for_status(hub, 503)
    assert answer.json()["problems"] == [
        {
            "part": "store",
            "message": "the store of the objects does not answer; the server's log says why",
        }
    ]
    assert hub.call("GET", "/v1/health/live").status == 200
    (hub.data_dir / "elsewhere").rename(objects)
    assert wait_for_status(hub, 200).json()["problems"] == []


def wait_for_status(hub: RunningHub, status: int) -> Answer:
    deadline = time.monotonic() + 20
    while (answer := hub.call("GET", "/v1/health")).status != status:
        assert time.monotonic() < deadline, answer.body
        time.sleep(0.1)
    return answer


def test_a_worker_that_hangs_makes_the_hub_degraded(hub: RunningHub) -> None:
    signs_of_life.mark_seen(hub.registry)
    long_ago = time.time() - 1000
    os.utime(hub.data_dir / signs_of_life.SEEN_FILE, (long_ago, long_ago))
    answer = hub.call("GET", "/v1/health")
    assert answer.status == 503
    assert "has looked for jobs for 1" in answer.json()["problems"][0]["message"]


def test_a_damaged_database_makes_the_hub_degraded(hub: RunningHub) -> None:
    signs_of_life.mark_seen(hub.registry)
    damaged = hub.data_dir / "damaged"
    damaged.write_bytes(b"no database at all, " * 500)
    damaged.replace(hub.data_dir / "deltahub.sqlite3")  # at once: the hub's own chores read it
    for suffix in ("-wal", "-shm"):
        (hub.data_dir / f"deltahub.sqlite3{suffix}").unlink(missing_ok=True)
    hub.registry.db.close()  # so that the next request opens the file
    answer = wait_for_status(hub, 503)
    (problem,) = answer.json()["problems"]
    assert problem == {
        "part": "database",
        "message": "the database is damaged; the server's log says why",
    }
