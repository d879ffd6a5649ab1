"""Pushes whose ingest has failed for good or was cancelled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub, JobFailed
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.server.process.supervisor import worker_supervisor
from support.models.model_folders import base_tensors, write_model
from support.service.hub import RunningHub, running_hub


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "data") as running:
        yield running


@pytest.fixture
def hub(server: RunningHub) -> Iterator[Hub]:
    with Hub(server.url, server.admin_token) as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", base_tensors())


def fail(server: RunningHub, job_id: str | None) -> None:
    assert job_id is not None
    with server.registry.db.write() as session:
        assert queue.mark_failed(session, job_id, "data_lost", "an upload was damaged")


def state_of(server: RunningHub, job_id: str | None) -> str:
    with server.registry.db.read() as session:
        return session.get_one(Job, job_id).state


def test_a_push_of_a_folder_whose_ingest_failed_starts_it_again(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    first = hub.push(folder, "admin/m", wait=False)
    fail(server, first.job_id)
    second = hub.push(folder, "admin/m", wait=False)
    assert not second.changed
    assert second.job_id not in (None, first.job_id)
    assert state_of(server, second.job_id) == "queued"
    third = hub.push(folder, "admin/m", wait=False)
    assert third.job_id == second.job_id
    worker = worker_supervisor(server.data_dir, 1.0, 5.0)
    worker.start()
    try:
        assert hub.push(folder, "admin/m").state == "proved"
        assert hub.push(folder, "admin/m").state == "proved"
    finally:
        worker.stop()


def test_a_push_of_a_folder_whose_ingest_was_cancelled_starts_it_again(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    first = hub.push(folder, "admin/m", wait=False)
    assert first.job_id is not None
    hub.cancel_job(first.job_id)
    second = hub.push(folder, "admin/m", wait=False)
    assert state_of(server, second.job_id) == "queued"


def test_a_client_that_skips_commits_without_changes_starts_a_failed_ingest_again(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    """Hugging Face clients compare the ids that `preupload` answers, and then send nothing."""
    first = hub.push(folder, "admin/m", wait=False)
    fail(server, first.job_id)
    answer = server.call(
        "POST",
        "/api/models/admin/m/preupload/main",
        token=server.admin_token,
        body={"files": [{"path": "model.safetensors", "size": 1, "sample": ""}]},
    )
    assert answer.status == 200
    revision = server.call("GET", "/v1/repositories/admin/m/revision", token=server.admin_token)
    assert revision.json()["job_id"] != first.job_id
    assert state_of(server, revision.json()["job_id"]) == "queued"


def test_a_job_that_fails_while_a_push_waits_for_it_fails_the_push(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    first = hub.push(folder, "admin/m", wait=False)
    assert first.job_id is not None
    fail(server, first.job_id)
    with pytest.raises(JobFailed, match="an upload was damaged"):
        hub.wait_for_job(first.job_id)
