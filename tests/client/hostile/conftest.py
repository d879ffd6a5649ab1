"""A hub that lies, and our client against it."""

from collections.abc import Iterator

import pytest

from deltahub.client import Hub
from support.service.hostile_hub import HostileHub, hostile_hub


@pytest.fixture
def evil() -> Iterator[HostileHub]:
    with hostile_hub() as running:
        yield running


@pytest.fixture
def client(evil: HostileHub) -> Iterator[Hub]:
    with Hub(evil.url, "dh_secret", patience_s=1) as hub:
        yield hub
