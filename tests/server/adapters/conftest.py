"""A hub with a worker, and a tiny Llama that ann has pushed."""

from collections.abc import Iterator

import pytest

from support.adapters.place import Place, adapter_place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with adapter_place(tmp_path_factory.mktemp("adapters")) as found:
        yield found
