"""Push and pull of trained models through a real hub: every byte comes back, few bytes move."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import snapshot_download

from deltahub.client import Conflict, Hub, InvalidArgument, NotFound, RefMoved, RepositoryNotFound
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.models.tiny_models import with_more_rows
from support.service.hub import RunningHub

MIB = 1 << 20


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base", base_tensors())


@pytest.fixture(scope="module")
def tuned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tuned", tuned_tensors())


def test_what_is_pushed_is_pulled_bit_for_bit_on_another_machine(
    hub: Hub, name: str, base_folder: Path, other_machine: Callable[[], Path]
) -> None:
    pushed = hub.push(base_folder, name, message="first")
    assert (pushed.state, pushed.changed) == ("proved", True)
    assert pushed.added == ("README.md", "config.json", "model.safetensors")
    other_machine()
    report = hub.pull_with_report(name, sha256=True)
    assert contents(report.path) == contents(base_folder)
    assert report.commit == pushed.commit
    assert report.path.name == pushed.commit
    assert hub.revision(name).message == "first"


@pytest.mark.parametrize("size", [0, 5, 3 * MIB])
def test_the_same_bytes_under_several_names_all_come_back(
    hub: Hub, name: str, tmp_path: Path, size: int
) -> None:
    folder = tmp_path / "same"
    folder.mkdir()
    data = os.urandom(size)
    for i in range(6):
        (folder / f"{i}.bin").write_bytes(data)
    hub.push(folder, name)
    hub.pull(name, to=tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)
    assert not (tmp_path / "back" / ".cache").exists()


def test_a_repeated_push_sends_nothing_and_commits_nothing(
    hub: Hub, name: str, base_folder: Path
) -> None:
    first = hub.push(base_folder, name)
    again = hub.push(base_folder, name)
    assert (again.commit, again.changed, again.sent) == (first.commit, False, 0)
    assert (again.unchanged, again.state) == (3, "proved")


def test_a_fine_tune_is_pushed_and_pulled_as_its_difference(
    hub: Hub,
    name: str,
    base_folder: Path,
    tuned_folder: Path,
    other_machine: Callable[[], Path],
) -> None:
    hub.push(base_folder, f"{name}-base")
    pushed = hub.push(tuned_folder, name, base=f"{name}-base")
    assert pushed.sent < 0.8 * pushed.size
    info = hub.info(name)
    assert info["base"]["declared"].startswith(f"{name}-base")

    other_machine()
    base = hub.pull_with_report(f"{name}-base")
    report = hub.pull_with_report(name)
    assert contents(report.path) == contents(tuned_folder)
    assert report.received < 0.8 * report.size < base.size


def test_without_its_base_a_fine_tune_still_comes_bit_for_bit(
    hub: Hub,
    name: str,
    base_folder: Path,
    tuned_folder: Path,
    other_machine: Callable[[], Path],
) -> None:
    hub.push(base_folder, f"{name}-base")
    hub.push(tuned_folder, name, base=f"{name}-base")
    other_machine()
    assert contents(hub.pull(name)) == contents(tuned_folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_base_in_another_dtype_and_a_longer_vocabulary_are_understood(
    hub: Hub, name: str, tmp_path: Path, dtype: torch.dtype, base_folder: Path
) -> None:
    hub.push(base_folder, f"{name}-base")
    tuned = {f"model.0.{key}": value for key, value in _longer(dtype).items()}
    tuned |= {
        key: value
        for key, value in {**tuned_tensors(dtype=dtype), **_prefixed(dtype)}.items()
        if not key.startswith("model.0.")
    }
    folder = write_model(tmp_path / "tuned", tuned)
    pushed = hub.push(folder, name, base=f"{name}-base")
    assert pushed.sent < 0.8 * pushed.size
    assert contents(hub.pull(name, to=tmp_path / "back", sha256=True)) == contents(folder)


def _longer(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    first = {
        key.removeprefix("model.0."): value
        for key, value in tuned_tensors(dtype=dtype).items()
        if key.startswith("model.0.")
    }
    return with_more_rows(first, 5)


def _prefixed(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    # More layers, so that the file is large enough for a query of its tensors.
    return {f"copy.{key}": value + 1 for key, value in tuned_tensors(dtype=dtype).items()}


def test_shards_with_an_index_share_tensors_with_a_single_file(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    tensors = {**base_tensors(), **{f"x.{key}": value + 1 for key, value in base_tensors().items()}}
    hub.push(write_model(tmp_path / "single", tensors), f"{name}-base")
    sharded = write_model(tmp_path / "sharded", tensors, n_shards=2)
    pushed = hub.push(sharded, name)
    assert pushed.sent < 0.2 * pushed.size
    other_machine()
    hub.pull(f"{name}-base")
    report = hub.pull_with_report(name)
    assert contents(report.path) == contents(sharded)
    assert report.received < 0.2 * report.size


def test_the_next_revision_is_sent_as_its_difference_from_the_last(
    hub: Hub, name: str, tmp_path: Path, base_folder: Path, other_machine: Callable[[], Path]
) -> None:
    hub.push(base_folder, name)
    folder = write_model(tmp_path / "m", tuned_tensors(1e-5))
    second = hub.push(folder, name)
    assert second.sent < 0.8 * second.size
    other_machine()
    for commit, source in ((hub.revision(name).parent, base_folder), (second.commit, folder)):
        assert commit is not None
        pulled = hub.pull(name, revision=commit)
        assert (pulled / "model.safetensors").read_bytes() == (
            source / "model.safetensors"
        ).read_bytes()


def test_a_folder_that_names_the_model_it_was_loaded_from_needs_no_base(
    hub: Hub, name: str, tmp_path: Path, base_folder: Path, tuned_folder: Path
) -> None:
    hub.push(base_folder, f"{name}-base")
    where = hub.pull(f"{name}-base")
    folder = write_model(tmp_path / "m", tuned_tensors(), _name_or_path=str(where))
    pushed = hub.push(folder, name)
    assert pushed.sent < 0.8 * pushed.size
    assert hub.info(name)["base"]["declared"] is None


def test_a_base_that_does_not_exist_is_no_obstacle(hub: Hub, name: str, tuned_folder: Path) -> None:
    pushed = hub.push(tuned_folder, name, base="admin/nobody-has-this")
    assert (pushed.state, pushed.base_state) == ("proved", "absent")
    assert hub.revision(name).base.declared == "admin/nobody-has-this"


def test_adding_keeps_and_mirroring_deletes_what_the_folder_lacks(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    hub.push(folder, name)
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("changed")
    added = hub.push(folder, name)
    assert (added.added, added.deleted) == (("b.txt",), ())
    mirrored = hub.push(folder, name, mirror=True)
    assert (mirrored.added, mirrored.deleted) == ((), ("a.txt",))
    assert [entry.path for entry in hub.revision(name).entries] == ["b.txt"]


def test_small_empty_and_odd_files_come_back(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    folder = tmp_path / "m"
    (folder / "sub dir" / "ü").mkdir(parents=True)
    (folder / "empty").write_bytes(b"")
    (folder / "sub dir" / "ü" / "300").write_bytes(bytes(range(250)) + b"#?%& +" * 8)
    (folder / "not.safetensors").write_bytes(b"\xff" * (MIB + 1))
    (folder / "weights.bin").write_bytes(bytes(3 * MIB + 17))
    hub.push(folder, name)
    other_machine()
    assert contents(hub.pull(name, to=tmp_path / "back")) == contents(folder)
    assert contents(hub.pull(name)) == contents(folder)


def test_the_cache_is_one_that_huggingface_hub_uses_without_asking(
    hub: Hub, name: str, base_folder: Path
) -> None:
    hub.push(base_folder, name)
    pulled = hub.pull(name)
    found = snapshot_download(name, local_files_only=True, cache_dir=os.environ["HF_HUB_CACHE"])
    assert Path(found) == pulled


def test_a_pull_of_what_is_here_moves_nothing(hub: Hub, name: str, base_folder: Path) -> None:
    hub.push(base_folder, name)
    hub.pull(name)
    again = hub.pull_with_report(name)
    assert (again.received, again.reused, again.fetched_files) == (0, again.size, ())


def test_a_folder_is_completed_and_damaged_files_in_it_are_replaced(
    hub: Hub, name: str, tmp_path: Path, base_folder: Path
) -> None:
    hub.push(base_folder, name)
    to = tmp_path / "to"
    hub.pull(name, to=to)
    assert not (to / ".cache").exists()
    (to / "config.json").write_text(" " * (to / "config.json").stat().st_size)
    (to / "README.md").unlink()
    (to / "mine.txt").write_text("kept")
    with pytest.raises(InvalidArgument, match=r"no pull left so.*: config.json; "):
        hub.pull(name, to=to)  # it may be the user's work
    report = hub.pull_with_report(name, to=to, overwrite=True)
    assert report.fetched_files == ("README.md", "config.json")
    assert report.replaced == ("config.json",)
    assert contents(to) == {**contents(base_folder), "mine.txt": b"kept"}


def test_branches_tags_commits_and_prefixes_can_be_pulled(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "f").write_text("main")
    first = hub.push(folder, name)
    (folder / "f").write_text("dev")
    hub.push(folder, name, revision="dev")
    assert (hub.pull(name, revision="dev") / "f").read_text() == "dev"
    assert (hub.pull(name, revision=first.commit[:10]) / "f").read_text() == "main"
    tag = {"path": f"/api/models/{name}/tag/{first.commit}", "body": {"tag": "t1"}}
    assert hub_server.call("POST", token=hub_server.admin_token, **tag).status == 200
    assert {ref.name for ref in hub.refs(name)} == {"main", "dev", "t1"}
    (folder / "f").write_text("new")
    with pytest.raises(InvalidArgument, match=r"t1 is a tag of .*, which stays where it is"):
        hub.push(folder, name, revision="t1")
    with pytest.raises(Conflict, match="t1 is a tag"):
        hub.delete_files(name, ["f"], revision="t1")
    assert (hub.pull(name, revision="t1") / "f").read_text() == "main"


def test_one_file_can_be_pushed_alone(hub: Hub, name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("one")
    hub.upload_file(tmp_path / "x", name, path="sub/y.txt")
    result = hub.upload_file(tmp_path / "x", name)
    assert result.added == ("x",)
    assert contents(hub.pull(name)) == {"sub/y.txt": b"one", "x": b"one"}


def test_somebody_elses_commit_in_between_is_kept(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "f").write_text("1")
    hub.push(folder, name)
    (folder / "f").write_text("2")
    api = hub._api
    read = api.find_revision
    interfered = []

    def read_and_interfere(*args: str) -> object:
        found = read(*args)
        if not interfered:
            interfered.append(True)
            hub_server.commit(name, {"theirs": b"x"})
        return found

    api.find_revision = read_and_interfere  # type: ignore[method-assign, assignment]
    hub.push(folder, name)
    assert contents(hub.pull(name)) == {"f": b"2", "theirs": b"x"}

    interfered.clear()
    (folder / "f").write_text("3")
    hub_server_file = {"theirs": b"y"}
    api.find_revision = read  # type: ignore[method-assign]

    def read_and_interfere_again(*args: str) -> object:
        found = read(*args)
        hub_server.commit(name, {**hub_server_file, "n": str(len(interfered)).encode()})
        interfered.append(True)
        return found

    api.find_revision = read_and_interfere_again  # type: ignore[method-assign, assignment]
    with pytest.raises(RefMoved):
        hub.push(folder, name, mirror=True)


def test_private_repositories_are_private_from_the_first_byte(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "f").write_text("secret")
    hub.push(folder, name, private=True)
    assert hub.repository(name).private
    with Hub(hub_server.url, hub_server.user("stranger")) as stranger:
        with pytest.raises(RepositoryNotFound):
            stranger.pull(name)
        assert name not in [each.name for each in stranger.list("admin")]
    with pytest.raises(InvalidArgument, match="is private"):
        hub.push(folder, name, private=False)


def test_deleting_files_and_repositories(hub: Hub, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    hub.push(folder, name)
    hub.delete_files(name, ["a"])
    assert contents(hub.pull(name)) == {"b": b"b"}
    hub.delete(name)
    with pytest.raises(NotFound):
        hub.revision(name)


def test_what_info_says_is_json(hub: Hub, name: str, base_folder: Path) -> None:
    hub.push(base_folder, name)
    info = json.loads(json.dumps(hub.info(name)))
    (weights,) = [file for file in info["files"] if file["path"] == "model.safetensors"]
    assert len(weights["tensors"]) == len(base_tensors())


def test_an_empty_folder_is_not_pushed(hub: Hub, name: str, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidArgument, match="no files"):
        hub.push(tmp_path / "nothing", name)


def test_an_empty_folder_is_mirrored_only_when_that_is_meant(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    nothing, folder = tmp_path / "nothing", tmp_path / "m"
    nothing.mkdir()
    folder.mkdir()
    (folder / "f").write_text("f")
    with pytest.raises(RepositoryNotFound):
        hub.push(nothing, name, mirror=True, allow_empty=True)
    hub.create(name)
    with pytest.raises(NotFound, match=f"{name} is empty"):
        hub.pull(name)
    hub.push(folder, name)
    with pytest.raises(NotFound, match=f"{name} has no branch"):
        hub.pull(name, revision="absent")
    with pytest.raises(InvalidArgument, match=f"every file of {name}@main"):
        hub.push(nothing, name, mirror=True)
    with pytest.raises(InvalidArgument, match="no files"):
        hub.push(nothing, name, allow_empty=True)
    assert contents(hub.pull(name)) == {"f": b"f"}
    emptied = hub.push(nothing, name, mirror=True, allow_empty=True)
    assert (emptied.deleted, hub.revision(name).entries) == (("f",), ())
