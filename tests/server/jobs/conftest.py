"""A hub with a worker, and one family of models in it."""

from collections.abc import Iterator

import pytest

from support.merging.family import Family, served_family


@pytest.fixture(scope="package")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    with served_family(tmp_path_factory.mktemp("jobs") / "data") as served:
        yield served
