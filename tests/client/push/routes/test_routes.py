"""Pushes to a hub, of files or at times that are unusual."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deltahub.client import Hub, JobFailed, Silent
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.service.hub import running_hub


class Notes(Silent):
    """Records the notes of a push."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_hub_that_refuses_the_difference_gets_whole_files(tmp_path: Path, home: Path) -> None:
    with (
        running_hub(tmp_path / "data", with_worker=True, max_decoded_bytes=1 << 20) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        hub.push(write_model(tmp_path / "base", base_tensors()), "admin/base")
        tuned = write_model(tmp_path / "tuned", tuned_tensors())
        told = Notes()
        pushed = hub.push(tuned, "admin/tuned", base="admin/base", progress=told)
        assert any("refuses the difference" in note for note in told.notes)
        assert pushed.state == "proved"
        assert not list((home / "deltahub" / "spool").rglob("*.pack"))
        assert contents(hub.pull("admin/tuned")) == contents(tuned)


@pytest.mark.parametrize(("max_depth", "private"), [(0, False), (1, True), (3, False)])
def test_a_push_sends_the_step_whatever_the_depth_that_the_hub_allows(
    tmp_path: Path,
    other_machine: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    max_depth: int,
    private: bool,
) -> None:
    monkeypatch.setenv("DELTAHUB_MAX_DEPTH", str(max_depth))  # for the worker, a process of its own
    with (
        running_hub(tmp_path / "data", with_worker=True, max_depth=max_depth) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        told, depths, commits, sent = Notes(), [], [], []
        rng = np.random.default_rng(1)
        weights = rng.normal(0, 0.02, (600, 512)).astype(np.float32)
        for step in range(6):
            folder = tmp_path / f"step{step}"
            folder.mkdir()
            save_file({"w": weights}, folder / "model.safetensors")
            pushed = hub.push(folder, "admin/line", private=private, progress=told)
            sent.append(pushed.sent)
            (tensor,) = hub.info("admin/line")["files"][0]["tensors"]
            depths.append(tensor["base_depth"])
            commits.append((pushed.commit, folder))
            weights = weights + rng.normal(0, 1e-5, weights.shape).astype(np.float32)
        assert max(sent[1:]) < 0.5 * sent[0]
        assert max(sent[1:]) < 1.1 * min(sent[1:])
        assert max(depths) <= max_depth
        assert not any("refuses" in note for note in told.notes)
        other_machine()
        for commit, folder in reversed(commits):
            assert contents(hub.pull("admin/line", revision=commit)) == contents(folder)


def test_a_line_that_drifts_from_its_anchor_begins_a_new_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every revision trains other rows, so that the distance to the anchor grows without end."""
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.02, (600, 512)).astype(np.float32)
    depths = []
    monkeypatch.setenv("DELTAHUB_MAX_DEPTH", "2")  # of the worker, too
    with (
        running_hub(tmp_path / "data", with_worker=True) as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        for step in range(8):
            folder = tmp_path / f"step{step}"
            folder.mkdir()
            save_file({"w": weights}, folder / "model.safetensors")
            hub.push(folder, name)
            (tensor,) = hub.info(name)["files"][0]["tensors"]
            depths.append(tensor["base_depth"])
            # Of each 64 KiB of elements, so that every place of the sample changes alike.
            weights = weights.copy()
            columns = slice(step * 64, step * 64 + 64)
            weights[:, columns] = rng.normal(0, 0.02, (600, 64)).astype(np.float32)
    assert depths[:3] == [0, 1, 2]
    assert 0 in depths[3:], depths


def test_without_a_worker_files_can_be_pulled_and_a_cancelled_job_is_told(
    tmp_path: Path,
) -> None:
    with (
        running_hub(tmp_path / "data") as server,
        Hub(server.url, server.admin_token) as hub,
    ):
        folder = write_model(tmp_path / "base", base_tensors())
        pushed = hub.push(folder, "admin/base", wait=False)
        assert pushed.state == "committed"
        assert pushed.job_id is not None
        assert contents(hub.pull("admin/base", to=tmp_path / "to", sha256=True)) == contents(folder)
        hub.cancel_job(pushed.job_id)
        with pytest.raises(JobFailed, match="cancelled"):
            hub.wait_for_job(pushed.job_id)
        pushed = hub.push(folder, "admin/gone", wait=False)
        assert pushed.job_id is not None
        hub.delete("admin/gone")
        with pytest.raises(JobFailed, match="its repository was deleted meanwhile"):
            hub.wait_for_job(pushed.job_id)


def test_a_long_line_of_revisions_stays_within_the_hubs_depth(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.02, (600, 512)).astype(np.float32)
    commits = []
    for step in range(5):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        save_file({"w": weights}, folder / "model.safetensors")
        pushed = hub.push(folder, name)
        assert step == 0 or pushed.sent < 0.9 * pushed.size
        commits.append((pushed.commit, folder))
        weights = weights + rng.normal(0, 1e-5, weights.shape).astype(np.float32)
    other_machine()
    for commit, folder in reversed(commits):
        assert contents(hub.pull(name, revision=commit, sha256=True)) == contents(folder)


def test_scalars_empty_tensors_and_thousands_of_small_ones_come_back(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    rng = np.random.default_rng(2)
    tensors = {f"expert.{i}.bias": rng.normal(0, 1, 150).astype(np.float32) for i in range(2000)}
    tensors |= {"step": np.array(7, np.int64), "none": np.zeros((0, 5), np.float32)}
    tensors |= {
        "mask": rng.integers(0, 2, (300, 3)).astype(np.bool_),
        "tied": tensors["expert.0.bias"],
    }
    folder = tmp_path / "m"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    hub.push(folder, name)
    for i in range(0, 2000, 10):
        tensors[f"expert.{i}.bias"] = tensors[f"expert.{i}.bias"] * np.float32(1.001)
    save_file(tensors, folder / "model.safetensors")
    pushed = hub.push(folder, name)
    assert pushed.sent < 0.5 * pushed.size
    other_machine()
    assert contents(hub.pull(name)) == contents(folder)


def test_a_file_that_is_not_what_its_name_says_is_kept_and_said_to_be_so(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(2 << 20))
    hub.push(folder, name)
    (file,) = hub.info(name)["files"]
    assert file["kind"] == "opaque"
    assert file["note"]
    assert contents(hub.pull(name, to=tmp_path / "to")) == contents(folder)
