"""A hub with a worker and a family of models, and browsers of an administrator and of ann."""

from collections.abc import Iterator

import pytest

from support.merging.family import Family, served_family
from support.web.browser import Browser


@pytest.fixture(scope="package")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    with served_family(tmp_path_factory.mktemp("pages") / "data") as served:
        yield served


@pytest.fixture(scope="package")
def admin(family: Family) -> Browser:
    browser = Browser(family.hub.url)
    browser.log_in(family.hub.admin_token)
    return browser


@pytest.fixture(scope="package")
def ann(family: Family) -> Browser:
    browser = Browser(family.hub.url)
    browser.log_in(family.token)
    return browser
