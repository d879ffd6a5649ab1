"""Every test has its own caches, and no credentials of the user who runs it."""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.service.hub import RunningHub, running_hub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, without DELTAHUB_* and HF_* of the environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in (
        "DELTAHUB_URL",
        "DELTAHUB_TOKEN",
        "HF_HOME",
        "HUGGINGFACE_HUB_CACHE",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "deltahub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hf"))
    return folder


@pytest.fixture(scope="session")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """One real hub with its worker for all tests of the client."""
    with running_hub(tmp_path_factory.mktemp("hub") / "data", with_worker=True) as hub:
        yield hub


@pytest.fixture
def hub(hub_server: RunningHub) -> Iterator[Hub]:
    """The SDK against that hub, as its administrator."""
    with Hub(hub_server.url, hub_server.admin_token, patience_s=5) as hub:
        yield hub


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A repository of this test's own."""
    return f"admin/{re.sub('[^a-z0-9]+', '-', request.node.name.lower())[:80].strip('-')}"


@pytest.fixture
def other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """A function that switches to empty caches, as on another machine."""

    def move() -> Path:
        folder = Path(tempfile.mkdtemp(dir=tmp_path, prefix="machine-"))
        monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "deltahub"))
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hf"))
        return folder

    return move
