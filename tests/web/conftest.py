"""One hub with real models, and one browser, for all tests of pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from support.web.browsing import chromium
from support.web.filled_hub import FilledHub, filled_hub


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledHub]:
    with filled_hub(tmp_path_factory.mktemp("hub")) as found:
        yield found
