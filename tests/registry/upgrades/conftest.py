"""A registry with two bases of ann's, the second a longer-trained first one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.registry.opened import opened_registry
from support.upgrades.planned import Bases


@pytest.fixture
def bases(tmp_path: Path) -> Iterator[Bases]:
    with opened_registry(tmp_path) as reg:
        yield Bases.pushed(reg)
