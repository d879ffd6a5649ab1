"""`pull` reads frames from the bucket itself, by links that the hub gives for a few minutes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.service.hub import RunningHub, running_hub
from support.service.seaweedfs import S3Service

BASE, TUNE = "admin/base", "admin/tune"


@pytest.fixture
def other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that switches to empty caches, as on another machine."""
    numbers = iter(range(100))

    def move() -> None:
        folder = tmp_path / f"machine-{next(numbers)}"
        monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "deltahub"))
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hf"))

    move()
    return move


@pytest.fixture
def environment(service: S3Service, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAHUB_STORE_URL", store_url)
    monkeypatch.setenv("DELTAHUB_S3_LINK_ENDPOINT", service.endpoint)


@pytest.fixture
def server(environment: None, tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "data", with_worker=True) as hub:
        yield hub


@pytest.fixture
def models(
    server: RunningHub, other_machine: Callable[[], None], tmp_path: Path
) -> dict[str, Path]:
    """A base and its fine-tune, pushed by a machine that is left after that."""
    folders = {
        BASE: write_model(tmp_path / "base", base_tensors()),
        TUNE: write_model(tmp_path / "tune", tuned_tensors()),
    }
    with Hub(server.url, server.admin_token) as hub:
        hub.push(folders[BASE], BASE)
        hub.push(folders[TUNE], TUNE, base=BASE)
    other_machine()
    return folders


def test_tensors_come_from_the_bucket(
    server: RunningHub, models: dict[str, Path], other_machine: Callable[[], None]
) -> None:
    sent: dict[bool, int] = {}
    for has_links in (False, True):
        other_machine()
        before = server.server.traffic.sent_bytes
        with Hub(server.url, server.admin_token) as hub:
            for name, folder in models.items():
                report = hub.pull_with_report(name, links=has_links, sha256=True)
                assert contents(report.path) == contents(folder)
                assert report.link_failures == 0
                assert bool(report.linked) == has_links
        sent[has_links] = server.server.traffic.sent_bytes - before
    # What is left: recipes, links, the small files.
    assert sent[True] < sent[False] / 4
