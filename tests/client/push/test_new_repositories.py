"""When a push creates a repository or a branch, and when it does not."""

from pathlib import Path

import pytest

from deltahub.client import Forbidden, Hub, InvalidArgument, RepositoryNotFound, Unauthorized
from support.service.hub import RunningHub


@pytest.mark.parametrize("bad", ["two\nlines", "broken link"])
def test_a_push_that_fails_creates_no_repository(
    hub: Hub, name: str, tmp_path: Path, bad: str
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a")
    (folder / bad).write_bytes(b"b")
    if bad == "broken link":
        (folder / bad).unlink()
        (folder / bad).symlink_to("nowhere")
    with pytest.raises(InvalidArgument):
        hub.push(folder, name)
    with pytest.raises(RepositoryNotFound):
        hub.repository(name)
    (folder / bad).unlink()
    hub.push(folder, name, private=True)
    assert hub.repository(name).private


def test_no_repository_is_created_before_all_files_were_read(
    hub: Hub, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.bin").write_bytes(b"a")

    def gone(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("deltahub.client.push.push.sha256_of", gone)
    with pytest.raises(OSError, match="Input/output"):
        hub.upload_file(tmp_path / "a.bin", name)
    with pytest.raises(RepositoryNotFound):
        hub.repository(name)


@pytest.mark.parametrize("scope", ["read", "write"])
def test_who_may_not_create_it_is_told_so_before_a_file_is_read(
    hub_server: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    token = hub_server.user(f"only-{scope}", scope)
    monkeypatch.setattr("deltahub.client.push.push.sha256_of", pytest.fail)
    (tmp_path / "a.bin").write_bytes(b"a")
    name = "only-read/m" if scope == "read" else "admin/theirs"
    with Hub(hub_server.url, token) as theirs, pytest.raises(Forbidden):
        theirs.upload_file(tmp_path / "a.bin", name)
    with Hub(hub_server.url, "") as nobody, pytest.raises(Unauthorized):
        nobody.upload_file(tmp_path / "a.bin", "admin/theirs")


def test_main_can_be_pushed_after_another_branch(hub: Hub, name: str, tmp_path: Path) -> None:
    for branch in ("v.1", "v.2", "main", "v.3"):
        (tmp_path / f"{branch}.txt").write_text(branch)
        hub.upload_file(tmp_path / f"{branch}.txt", name, revision=branch)
    found = {
        branch: [entry.path for entry in hub.revision(name, branch).entries]
        for branch in ("v.1", "v.2", "main", "v.3")
    }
    assert found == {
        "v.1": ["v.1.txt"],
        "v.2": ["v.2.txt"],
        "main": ["main.txt"],
        "v.3": ["main.txt", "v.3.txt"],
    }
