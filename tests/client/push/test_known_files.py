"""Bytes that the hub has are not sent; bytes of this machine are not fetched."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltahub.client import Forbidden, Hub, LocalFileChanged, Silent, Stage, Unauthorized
from support.models.model_folders import base_tensors, contents, write_model
from support.service.client_process import deltahub
from support.service.hub import RunningHub

SMALL, LARGE = 30_000, (1 << 20) + 7


class Stages(Silent):
    """Records the titles of a push's stages."""

    def __init__(self) -> None:
        self.titles: list[str] = []

    @contextmanager
    def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
        self.titles.append(title)
        with super().stage(title, total) as stage:
            yield stage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with a small and a large file besides weights; no other test has its bytes."""
    tensors = {key: value + os.urandom(1)[0] for key, value in base_tensors().items()}
    folder = write_model(tmp_path / "model", tensors, id=os.urandom(8).hex())
    (folder / "tokenizer.json").write_bytes(os.urandom(SMALL))
    (folder / "tokenizer.model").write_bytes(os.urandom(LARGE))
    return folder


def received(hub: RunningHub) -> int:
    """Number of bytes that the server has read from its sockets."""
    counted: int = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()["received_bytes"]
    return counted


def requests(hub: RunningHub) -> int:
    counted: int = hub.call("GET", "/v1/metrics", token=hub.admin_token).json()["requests"]
    return counted


def test_many_small_files_take_few_requests(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(600):
        (folder / f"{i}.json").write_bytes(os.urandom(20))
    (folder / "empty").touch()
    before = requests(hub_server)
    pushed = hub.push(folder, name, wait=False)
    assert requests(hub_server) - before < 30
    assert pushed.sent == 600 * 20
    assert len(hub.revision(name).entries) == 601


def test_a_small_file_that_changes_while_it_is_pushed_is_named(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(os.urandom(20))

    class Changing(Stages):
        @contextmanager
        def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
            if title == "upload":
                (tmp_path / "a.json").write_bytes(os.urandom(20))
            with super().stage(title, total) as stage:
                yield stage

    with pytest.raises(LocalFileChanged, match=r"a\.json changed"):
        hub.push(tmp_path, name, progress=Changing())


@pytest.mark.parametrize("wait", [True, False])
def test_a_folder_that_the_hub_has_is_not_sent_to_a_second_repository(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    folder: Path,
    other_machine: Callable[[], Path],
    wait: bool,
) -> None:
    first = Stages()
    assert hub.push(folder, name, wait=wait, progress=first).sent > SMALL + LARGE
    assert first.titles[:3] == ["hash", "compare with the hub", "upload"]
    assert set(first.titles[3:]) <= {
        "send differences",
        "send tensors",
        "verify at the hub",
        "store at the hub",
        "keep a copy for the next push",
    }
    other_machine()
    reader = f"reader-{wait}".lower()
    token = hub_server.user(reader)
    with Hub(hub_server.url, token) as theirs:
        for pusher, where in ((hub, f"{name}-copy"), (theirs, f"{reader}/copy")):
            before, second = received(hub_server), Stages()
            pushed = pusher.push(folder, where, progress=second)
            assert (pushed.sent, len(pushed.added)) == (0, 5)
            assert received(hub_server) - before < 20_000
            assert "upload" not in second.titles
            assert contents(hub.pull(where)) == contents(folder)


def test_a_file_that_somebody_else_keeps_secret_is_sent_like_one_that_nobody_has(
    hub_server: RunningHub, hub: Hub, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "secret.bin").write_bytes(os.urandom(SMALL))
    hub.push(folder, name, private=True)
    with Hub(hub_server.url, hub_server.user("finder")) as finder:
        assert finder.push(folder, "finder/open").sent == SMALL
    # Its own public repository takes nothing by reference from a private one either.
    assert hub.push(folder, f"{name}-open").sent == 0, "but finder/open may be read by all"


def test_what_was_there_when_asked_and_is_gone_at_the_commit_is_sent_after_all(
    hub: Hub, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "a.bin").write_bytes(os.urandom(SMALL))
    (folder / "b.bin").write_bytes(os.urandom(SMALL))
    api = hub._api
    ask = api.query_files
    asked: list[int] = []

    def ask_and_lose(where: str, files: dict[str, int]) -> set[str]:
        asked.append(len(files))
        return set(files) if len(asked) == 1 else ask(where, files)

    monkeypatch.setattr(api, "query_files", ask_and_lose)
    pushed = hub.push(folder, name)
    assert (pushed.sent, asked) == (2 * SMALL, [2, 2])
    assert contents(hub.pull(name)) == contents(folder)


def test_who_may_not_push_is_refused_before_a_file_is_read(
    hub_server: RunningHub, hub: Hub, name: str, folder: Path
) -> None:
    hub.create(name)
    token = hub_server.user("passer-by")
    stages = Stages()
    before = received(hub_server)
    with Hub(hub_server.url, token) as other, pytest.raises(Forbidden, match=name):
        other.push(folder, name, progress=stages)
    with Hub(hub_server.url) as nobody, pytest.raises(Unauthorized):
        nobody.push(folder, name, progress=stages)
    assert stages.titles == []
    assert received(hub_server) - before < 5_000
    run = deltahub("push", str(folder), name, "--json", "--url", hub_server.url, "--token", token)
    assert (run.status, run.error()["code"]) == (4, "forbidden")


@pytest.mark.parametrize(("is_indexed", "to_folder"), [(True, True), (False, False)])
def test_files_that_came_with_another_repository_are_not_fetched_again(
    hub: Hub,
    name: str,
    folder: Path,
    tmp_path: Path,
    other_machine: Callable[[], Path],
    is_indexed: bool,
    to_folder: bool,
) -> None:
    hub.push(folder, name)
    (folder / "README.md").write_bytes(b"another model")
    hub.push(folder, f"{name}-copy")
    machine = other_machine()
    hub.pull(name)
    if not is_indexed:  # as if huggingface_hub had put it there
        for path in (machine / "deltahub").glob("tensors.sqlite*"):
            path.unlink()
    to = tmp_path / "to" if to_folder else None
    report = hub.pull_with_report(f"{name}-copy", to=to)
    assert contents(report.path) == contents(folder)
    weights = (folder / "model.safetensors").stat().st_size
    assert report.received < 13 + 10_000  # the README and the recipe of the weights
    assert report.reused >= SMALL + LARGE + 0.9 * weights
    assert report.received + report.reused <= report.size + 10_000


def test_a_local_copy_that_was_damaged_is_not_used(
    hub: Hub, name: str, folder: Path, other_machine: Callable[[], Path]
) -> None:
    hub.push(folder, name)
    hub.push(folder, f"{name}-copy")
    other_machine()
    for path in hub.pull(name).rglob("*"):
        if path.suffix != ".safetensors":
            stat = path.stat()
            path.write_bytes(bytes(stat.st_size))
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = hub.pull_with_report(f"{name}-copy")
    assert contents(report.path) == contents(folder)
    assert report.received >= SMALL + LARGE
