"""A hub that names paths to take over the machine that pulls them: nothing is written."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltahub.client import BadResponse, Hub, InvalidArgument, VerificationFailed
from deltahub.client.pull import safe_paths
from support.models.model_folders import contents
from support.service.client_process import deltahub
from support.service.hostile_hub import COMMIT, HostileHub, entry

NAME = "evil/m"
GOOD = {"README.md": b"fine", "sub/config.json": b"{}"}
UNSAFE = (
    ".git/config", "sub/.GIT/config", "git~1/config", ".g\u200cit/config", ".hg/hgrc", "../up",
    "/etc/x", "a/../../up", "a\\b", "con", "aux.txt", "a.", "a ", "a:b", ".git::$DATA",
    "a\u202eb", "a\x1b[2Jb", "a//b", "", ".cache/deltahub/x", "x" * 300, "y/" * 600 + "z",
)  # fmt: skip


def everything(folder: Path) -> list[str]:
    """All files and folders below, but for the client's own index."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(path for path in paths if not path.startswith("home/deltahub"))


@pytest.mark.parametrize("path", UNSAFE)
@pytest.mark.parametrize("is_to", [True, False])
def test_an_unsafe_path_is_named_and_nothing_is_written(
    evil: HostileHub, client: Hub, tmp_path: Path, home: Path, is_to: bool, path: str
) -> None:
    evil.serve_revision(NAME, {**GOOD, path: b"evil"})
    (tmp_path / "m").mkdir()
    before = everything(tmp_path / "m"), everything(home / "hf") if (home / "hf").exists() else []
    with pytest.raises(BadResponse, match="nothing was written") as refused:
        client.pull(NAME, to=tmp_path / "m" if is_to else None)
    assert repr(path) in str(refused.value) or ascii(path)[1:-1] in str(refused.value)
    assert not any(request[1].split("?")[0].endswith("README.md") for request in evil.seen)
    after = everything(tmp_path / "m"), everything(home / "hf") if (home / "hf").exists() else []
    assert after == before


def test_the_command_names_the_file_and_exits_with_1_and_git_runs_nothing(
    evil: HostileHub, tmp_path: Path
) -> None:
    config = b"[core]\n\tfsmonitor = touch %s\n" % str(tmp_path / "taken").encode()
    evil.serve_revision(NAME, {".git/config": config, ".git/HEAD": b"ref: refs/heads/main\n"})
    folder = tmp_path / "m"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    run = deltahub("pull", NAME, "--to", str(folder), "--overwrite", "--url", evil.url)
    assert run.status == 1
    assert "'.git/config' holds '.git'" in run.err
    subprocess.run(["git", "status"], cwd=folder, check=True, capture_output=True)
    assert not (tmp_path / "taken").exists()


BARE = {
    "HEAD": b"ref: refs/heads/main\n",
    "config": b"[core]\n\tbare = false\n\tworktree = .\n",
    "objects/x": b"",
    "refs/x": b"",
}


def test_files_that_make_the_folder_a_git_repository_are_refused(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    evil.serve_revision(NAME, BARE)
    with pytest.raises(BadResponse, match="look like a git repository"):
        client.pull(NAME, to=tmp_path / "m")


def test_two_pulls_cannot_make_the_folder_a_git_repository_either(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    evil.serve_revision(NAME, {path: BARE[path] for path in ("HEAD", "config")})
    client.pull(NAME, to=tmp_path / "m")
    evil.serve_revision(NAME, {path: BARE[path] for path in ("objects/x", "refs/x")})
    with pytest.raises(InvalidArgument, match="git would take"):
        client.pull(NAME, to=tmp_path / "m")
    assert not (tmp_path / "m" / "objects").exists()


@pytest.mark.parametrize(
    "files", [{"a": b"1", "a/b": b"2"}, {"x/a/b": b"1", "x/a": b"2"}], ids=["above", "below"]
)
def test_a_path_that_is_both_a_file_and_a_folder_is_refused(
    evil: HostileHub, client: Hub, tmp_path: Path, files: dict[str, bytes]
) -> None:
    evil.serve_revision(NAME, files)
    with pytest.raises(BadResponse, match="both a file and the folder"):
        client.pull(NAME, to=tmp_path / "m")


def test_a_path_that_comes_twice_is_refused(evil: HostileHub, client: Hub, tmp_path: Path) -> None:
    revision = evil.serve_revision(NAME, GOOD)
    revision["entries"].append(entry("README.md", b"other"))
    with pytest.raises(BadResponse, match="one path twice"):
        client.pull(NAME, to=tmp_path / "m")


def test_names_that_differ_by_case_are_pulled_where_they_stay_apart(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    files = {"README.md": b"one", "readme.md": b"other", "A": b"file", "a/b": b"below"}
    evil.serve_revision(NAME, files)
    client.pull(NAME, to=tmp_path / "m")
    assert contents(tmp_path / "m") == files
    assert contents(client.pull(NAME)) == files


@pytest.mark.parametrize(
    "files",
    [{"README.md": b"1", "readme.md": b"2"}, {"A": b"1", "a/b": b"2"}, {"x/a": b"", "X/A": b""}],
)
def test_names_that_differ_by_case_are_refused_where_they_are_one_file(
    evil: HostileHub,
    client: Hub,
    tmp_path: Path,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system without case is simulated: mounting a real one needs privileges."""

    class Folding(type(Path())):  # type: ignore[misc]  # the class depends on the platform
        def __truediv__(self, part: Any) -> Path:
            return super().__truediv__(str(part).lower())

    monkeypatch.setattr(safe_paths, "Path", Folding)
    evil.serve_revision(NAME, files)
    with pytest.raises(InvalidArgument, match="two files of the revision and one file in"):
        client.pull(NAME, to=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def link_in_the_way(root: Path, outside: Path) -> None:
    root.mkdir()
    (root / "sub").symlink_to(outside)


def link_further_up(root: Path, outside: Path) -> None:
    root.mkdir()
    (root / "deep").symlink_to(outside)


def link_to_the_folder_itself(root: Path, outside: Path) -> None:
    root.mkdir()
    (root / ".git").mkdir()
    (root / "sub").symlink_to(".git")


def link_in_place_of_our_own_folder(root: Path, outside: Path) -> None:
    root.mkdir()
    (root / ".cache").symlink_to(outside)


@pytest.mark.parametrize(
    "prepare",
    [
        link_in_the_way, link_further_up, link_to_the_folder_itself,
        link_in_place_of_our_own_folder,
    ],
)  # fmt: skip
def test_nothing_is_written_through_a_link_in_the_target_folder(
    evil: HostileHub, client: Hub, tmp_path: Path, prepare: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    prepare(tmp_path / "m", outside)
    before = everything(tmp_path)
    evil.serve_revision(NAME, {"a": b"x", "sub/config": b"evil", "deep/down/x": b"evil"})
    with pytest.raises(InvalidArgument, match="is a link"):
        client.pull(NAME, to=tmp_path / "m", overwrite=True)
    assert everything(tmp_path) == before


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_bytes(b"mine")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a").symlink_to(outside)
    evil.serve_revision(NAME, {"a": b"pulled"})
    with pytest.raises(InvalidArgument, match="no pull left so"):
        client.pull(NAME, to=tmp_path / "m")
    client.pull(NAME, to=tmp_path / "m", overwrite=True)
    assert outside.read_bytes() == b"mine"
    assert not (tmp_path / "m" / "a").is_symlink()
    assert (tmp_path / "m" / "a").read_bytes() == b"pulled"


def test_the_target_folder_itself_may_be_a_link(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    (tmp_path / "big-disk").mkdir()
    (tmp_path / "m").symlink_to("big-disk")
    evil.serve_revision(NAME, GOOD)
    client.pull(NAME, to=tmp_path / "m")
    assert contents(tmp_path / "big-disk") == GOOD


def test_a_link_in_the_cache_is_not_written_through(
    evil: HostileHub, client: Hub, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    snapshot = home / "hf" / "models--evil--m" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "sub").symlink_to(tmp_path / "outside")
    evil.serve_revision(NAME, GOOD)
    with pytest.raises(InvalidArgument, match="is a link"):
        client.pull(NAME)
    assert everything(tmp_path / "outside") == []


@pytest.mark.parametrize(
    "change",
    [
        {"etag": "../../../x"}, {"etag": "a/b"}, {"etag": ""}, {"etag": "e" * 64},
        {"etag": "E" * 40}, {"sha256": "../" * 20 + "x" * 4}, {"sha256": "x" * 64},
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_to", [True, False])
def test_hashes_that_are_file_names_are_checked(
    evil: HostileHub, client: Hub, tmp_path: Path, change: dict[str, str], is_to: bool
) -> None:
    revision = evil.serve_revision(NAME, {"a": b"x"})
    revision["entries"][0] |= change
    before = everything(tmp_path)
    with pytest.raises(BadResponse):
        client.pull(NAME, to=tmp_path / "m" if is_to else None)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("commit", ["../../x", "", "x" * 40, "c" * 41, "C" * 40, "c" * 39, "."])
def test_a_commit_that_is_no_id_is_refused(
    evil: HostileHub, client: Hub, tmp_path: Path, commit: str
) -> None:
    evil.serve_revision(NAME, GOOD, commit=commit)
    before = everything(tmp_path)
    with pytest.raises(BadResponse):
        client.pull(NAME)
    assert everything(tmp_path) == before


def test_a_hub_cannot_answer_a_commit_with_another_one(evil: HostileHub, client: Hub) -> None:
    evil.serve_revision(NAME, GOOD, commit="d" * 40)
    with pytest.raises(BadResponse, match="another commit"):
        client.pull(NAME, revision=COMMIT)


def test_a_blob_of_the_cache_has_the_git_id_that_names_it(
    evil: HostileHub, client: Hub, home: Path
) -> None:
    """Else Hugging Face clients would take the hub's bytes for those of another file."""
    revision = evil.serve_revision(NAME, {"config.json": b"evil"})
    other = entry("config.json", b"good")["etag"]
    revision["entries"][0] |= {"etag": other, "git_blob_id": other}
    with pytest.raises(VerificationFailed, match="git id"):
        client.pull(NAME)
    assert not list((home / "hf").rglob(f"{other}*blobs*"))
    assert not (home / "hf" / "models--evil--m" / "blobs" / other).exists()


@pytest.mark.parametrize(
    "declared", ["../../x/y", "a\0b/c", "x/../y", "a/b/c", "~/.ssh", "\x1b[2J"]
)
def test_a_declared_base_with_an_odd_name_is_ignored(
    evil: HostileHub, client: Hub, tmp_path: Path, declared: str
) -> None:
    base = {"declared": declared, "commit": "d" * 40}
    evil.serve_revision(NAME, {"w.bin": bytes(2 << 20)}, base=base)
    client.pull(NAME, to=tmp_path / "m")
    assert (tmp_path / "m" / "w.bin").stat().st_size == 2 << 20


@pytest.mark.parametrize("revision", ["../../up", "con", "a\x1bb", "a:b", ".git"])
def test_a_revision_of_which_the_cache_can_keep_no_file_is_refused_before_anything(
    evil: HostileHub, client: Hub, home: Path, revision: str
) -> None:
    evil.serve_revision(NAME, GOOD)
    with pytest.raises(InvalidArgument, match="not the name of a revision"):
        client.pull(NAME, revision=revision)
    assert not (home / "hf").exists()


def test_the_json_error_names_the_file_too(evil: HostileHub, tmp_path: Path) -> None:
    evil.serve_revision(NAME, {"a\x1b[2Jb": b""})
    run = deltahub("pull", NAME, "--to", str(tmp_path / "m"), "--url", evil.url, "--json")
    assert run.status == 1
    assert json.loads(run.err)["error"]["code"] == "bad_response"
    assert "\x1b" not in run.err
