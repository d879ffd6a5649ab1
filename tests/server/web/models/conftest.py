"""One hub with a family of models, for all tests of their pages."""

from collections.abc import Iterator

import pytest

from support.web.model_family import World, hub_with_family


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with hub_with_family(tmp_path_factory.mktemp("models") / "data") as running:
        yield running
