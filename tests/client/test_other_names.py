"""Models that a user names otherwise than the hub does, and folders that are no models."""

from collections.abc import Callable
from pathlib import Path

from deltahub.client import Hub
from support.models.model_folders import base_tensors, contents, write_model
from support.service.client_process import deltahub
from support.service.hub import RunningHub


def test_a_model_is_pushed_and_pulled_by_another_case_and_by_its_old_name(
    hub: Hub,
    hub_server: RunningHub,
    name: str,
    tmp_path: Path,
    other_machine: Callable[[], Path],
) -> None:
    base_folder = write_model(tmp_path / "base", base_tensors())
    first = hub.push(base_folder, name)
    body = {"fromRepo": name, "toRepo": f"{name}-Now"}
    path, token = "/api/repos/move", hub_server.admin_token
    assert hub_server.call("POST", path, token=token, body=body).status == 200
    for each in (name, name.upper(), f"{name}-now"):
        again = hub.push(base_folder, each)
        assert (again.repository, again.commit, again.sent) == (f"{name}-Now", first.commit, 0)
        other_machine()
        assert contents(hub.pull(each)) == contents(base_folder)


def test_a_clone_without_git_lfs_is_warned_of_at_push_and_in_info(
    hub: Hub, hub_server: RunningHub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 123456789\n"
    (folder / "model.safetensors").write_text(pointer)
    (folder / "config.json").write_text("{}")
    run = deltahub("push", str(folder), name, "--url", hub.url, "--token", hub_server.admin_token)
    assert run.status == 0, run.err
    assert "warning: model.safetensors: a Git LFS pointer" in run.err
    assert "git lfs pull" in run.err
    (note,) = [file["note"] for file in hub.info(name)["files"] if "model" in file["path"]]
    assert "a Git LFS pointer, not the file of 123456789 bytes" in note
    shown = deltahub("info", name, "--url", hub.url)
    assert "a Git LFS pointer" in shown.out
