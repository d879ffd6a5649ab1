"""A hub with a worker, for exports of small Llamas."""

from collections.abc import Iterator

import pytest

from support.exporting.place import Place, export_place


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with export_place(tmp_path_factory.mktemp("exports")) as found:
        yield found
