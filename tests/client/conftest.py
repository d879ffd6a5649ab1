"""Every test has its own caches and no credentials of the person who runs it."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; DELTAHUB_* and HF_* of the outside are gone."""
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
