"""One hub for tests of HTTP alone; each test uses names of its own."""

from collections.abc import Iterator

import pytest

from support.service.hub import RunningHub, running_hub


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(
        tmp_path_factory.mktemp("hub") / "data",
        max_request_json_bytes=100_000,
        max_file_bytes=64 << 20,
    ) as running:
        yield running
