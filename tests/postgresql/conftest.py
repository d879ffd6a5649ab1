"""A PostgreSQL server for the tests of a file, and a hub on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Registry
from support.registry.opened import opened_registry
from support.service.postgresql import postgresql_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgresql_server() as address:
        yield address


@pytest.fixture
def reg(url: str, tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, database_url=url) as registry:
        yield registry
