"""One hub with real models, and one browser, for all tests of pages."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.web.browsing import chromium
from support.web.filled_hub import FilledHub, filled_hub


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def hub() -> Iterator[FilledHub]:
    # Pages of administrators show the folder, and are in the pictures of the documentation.
    folder = Path(tempfile.mkdtemp(prefix="deltahub-"))
    try:
        with filled_hub(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
