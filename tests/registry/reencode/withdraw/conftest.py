"""Each test has its own copy of one folder with a base and its fine-tunes."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from support.registry.opened import caller, opened_registry
from support.registry.withdrawing import Models, make_models


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Models]:
    folder = tmp_path_factory.mktemp("models")
    return folder, make_models(folder)


@pytest.fixture
def models(made: tuple[Path, Models], tmp_path: Path) -> Models:
    shutil.copytree(made[0] / "data", tmp_path / "data")
    return replace(made[1], tunes=dict(made[1].tunes))


@pytest.fixture
def reg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if "models" in request.fixturenames:
        request.getfixturevalue("models")
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def bob(reg: Registry) -> Caller:
    return caller(reg, "bob")
