"""A small hub, copied for each test that loses or damages its packs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.registry.ingested import stored_tensors
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import SmallHub, fill


@pytest.fixture(scope="session")
def small_hub_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("small-hub")
    with opened_registry(folder) as reg:
        revisions = fill(reg, caller(reg, "ann"))
        assert any(each.bases for each in stored_tensors(reg, revisions["ann/tune"]).values())
    return folder, revisions


@pytest.fixture
def hub(small_hub_folder: tuple[Path, dict[str, int]], tmp_path: Path) -> Iterator[SmallHub]:
    folder, revisions = small_hub_folder
    shutil.copytree(folder / "data", tmp_path / "data")
    with opened_registry(tmp_path) as reg:
        yield SmallHub(reg, caller(reg, "ann"), revisions)
