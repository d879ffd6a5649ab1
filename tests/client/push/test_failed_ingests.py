"""Pushes whose ingest fails: for a moment, because no worker lives, or for good."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub, JobFailed, Silent
from deltahub.client.api import jobs
from deltahub.client.records import PushResult
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.server.process.supervisor import worker_supervisor
from support.models.model_folders import base_tensors, contents, write_model
from support.service.hub import RunningHub, running_hub


class Notes(Silent):
    """Records the notes of a push."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def wait_for(self, part: str) -> None:
        deadline = time.monotonic() + 60
        while not any(part in note for note in self.notes):
            assert time.monotonic() < deadline, self.notes
            time.sleep(0.05)


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


class Pushing:
    """A push in a thread of its own."""

    def __init__(self, hub: Hub, folder: Path, name: str) -> None:
        self.told = Notes()
        self._results: list[PushResult] = []

        def push() -> None:
            self._results.append(hub.push(folder, name, progress=self.told))

        self._thread = threading.Thread(target=push, daemon=True)
        self._thread.start()

    def result(self) -> PushResult:
        self._thread.join(60)
        return self._results[0]


def fail(server: RunningHub, job_id: str | None) -> None:
    assert job_id is not None
    with server.registry.db.write() as session:
        assert queue.mark_failed(session, job_id, "data_lost", "an upload was damaged")


def state_of(server: RunningHub, job_id: str | None) -> str:
    with server.registry.db.read() as session:
        return session.get_one(Job, job_id).state


def test_a_push_says_that_no_worker_lives_and_ends_when_one_does(
    server: RunningHub, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE_S", 0.5)
    pushing = Pushing(hub, folder, "admin/m")
    pushing.told.wait_for("no worker runs on this hub")
    worker = worker_supervisor(server.data_dir, 1.0, 5.0)
    worker.start()
    try:
        assert pushing.result().state == "proved"
    finally:
        worker.stop()


def test_a_push_waits_until_the_hubs_store_is_back(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_WORKER_RETRY_PAUSE_MAX_S", "0.5")
    with (
        running_hub(tmp_path / "hub", with_worker=True) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        packs = server.data_dir / "objects" / "packs"
        packs.write_bytes(b"a file, so that no pack can be written")
        pushing = Pushing(hub, folder, "admin/m")
        deadline = time.monotonic() + 60
        while not (found := repeated(server)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found[0].error_code == "unavailable"
        packs.unlink()
        assert pushing.result().state == "proved"
        assert contents(hub.pull("admin/m")) == contents(folder)


def repeated(server: RunningHub) -> list[Job]:
    with server.registry.db.read() as session:
        return list(session.query(Job).where(Job.attempts > 0))


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


def test_a_commit_of_other_files_ingests_those_whose_ingest_failed(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    fail(server, hub.push(folder, "admin/m", wait=False).job_id)
    (folder / "more.txt").write_text("more")
    worker = worker_supervisor(server.data_dir, 1.0, 5.0)
    worker.start()
    try:
        assert hub.push(folder, "admin/m").state == "proved"
    finally:
        worker.stop()
    assert all(file["state"] == "ingested" for file in hub.info("admin/m")["files"])


def test_a_revision_is_proved_although_its_job_failed_after_the_last_file(
    tmp_path: Path, folder: Path
) -> None:
    with (
        running_hub(tmp_path / "hub", with_worker=True) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        first = hub.push(folder, "admin/m")
        with server.registry.db.write() as session:
            job = session.get_one(Job, first.job_id)
            job.state, job.error_code, job.error = "failed", "job_failed", "a bug"
        second = hub.push(folder, "admin/m")
        assert second.state == "proved"
        assert second.job_id not in (None, first.job_id)


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
