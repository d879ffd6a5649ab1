"""A hub of their own: models that other tests push could be bases of these."""

from collections.abc import Iterator

import pytest

from support.service.hub import RunningHub, running_hub


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "data", with_worker=True) as hub:
        yield hub
