"""A registry with one user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from support.registry.opened import caller, opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")
