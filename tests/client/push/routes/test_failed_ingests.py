"""Pushes whose ingest fails for a moment, because no worker lives, or after its last file."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub, Silent
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


def test_a_commit_of_other_files_ingests_those_whose_ingest_failed(
    server: RunningHub, hub: Hub, folder: Path
) -> None:
    first = hub.push(folder, "admin/m", wait=False)
    assert first.job_id is not None
    with server.registry.db.write() as session:
        assert queue.mark_failed(session, first.job_id, "data_lost", "an upload was damaged")
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
