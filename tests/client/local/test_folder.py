"""Which files of a folder are pushed."""

import os
from pathlib import Path

import pytest

from deltahub.client.errors import InvalidArgument
from deltahub.client.local.folder import list_folder


def write(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def paths(folder: Path) -> list[str]:
    return [file.path for file in list_folder(folder).files]


def test_all_files_are_listed_by_path(tmp_path: Path) -> None:
    for name in ("b.json", "a/model.safetensors", "a/b/c.txt", ".gitattributes"):
        write(tmp_path / "m" / name)
    assert paths(tmp_path / "m") == [".gitattributes", "a/b/c.txt", "a/model.safetensors", "b.json"]


def test_what_tools_leave_behind_is_not_pushed(tmp_path: Path) -> None:
    for name in (".git/config", ".hg/hgrc", ".jj/x", ".svn/x", ".bzr/x", ".cache/deltahub/x",
                 "a/__pycache__/m.pyc", ".DS_Store", "ok"):  # fmt: skip
        write(tmp_path / "m" / name)
    assert paths(tmp_path / "m") == ["ok"]


def test_links_that_leave_the_folder_are_skipped_and_named(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret" / "id_rsa")
    write(tmp_path / "m" / "real")
    (tmp_path / "m" / "key").symlink_to(secret)
    (tmp_path / "m" / "folder").symlink_to(secret.parent)
    (tmp_path / "m" / "inside").symlink_to("real")
    listed = list_folder(tmp_path / "m")
    assert [file.path for file in listed.files] == ["inside", "real"]
    assert listed.skipped == {
        "folder": "a link to a folder",
        "key": "a link that leaves the folder",
    }


def test_links_to_folders_and_what_is_no_file_are_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path / "m" / "real" / "a")
    (tmp_path / "m" / "again").symlink_to("real")
    (tmp_path / "m" / "real" / "up").symlink_to("..")
    (tmp_path / "m" / ".git").symlink_to("real")
    os.mkfifo(tmp_path / "m" / "pipe")
    listed = list_folder(tmp_path / "m")
    assert [file.path for file in listed.files] == ["real/a"]
    assert listed.skipped == {
        "again": "a link to a folder",
        "pipe": "neither a file nor a folder",
        "real/up": "a link to a folder",
    }


def test_a_snapshot_of_the_hugging_face_cache_can_be_pushed(tmp_path: Path) -> None:
    root = tmp_path / "models--a--b"
    write(root / "blobs" / "abc", b"weights")
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    (file,) = list_folder(snapshot).files
    assert (file.path, file.size) == ("model.safetensors", 7)


def test_a_dangling_link_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "gone").symlink_to("nowhere")
    with pytest.raises(InvalidArgument, match="gone is a link"):
        list_folder(tmp_path / "m")


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a folder"):
        list_folder(tmp_path / "nothing")


def test_a_name_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "bad\udcff").write_bytes(b"x")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        list_folder(tmp_path / "m")
