"""Other machines, which see the hub's bytes alone."""

from collections.abc import Callable, Iterator

import pytest

from deltahub.client import Hub
from support.service.hub import RunningHub


@pytest.fixture
def another(hub_server: RunningHub) -> Iterator[Callable[[], Hub]]:
    """A function that connects as another process, which holds no step."""
    opened: list[Hub] = []

    def connect() -> Hub:
        opened.append(Hub(hub_server.url, hub_server.admin_token, patience_s=5))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()
