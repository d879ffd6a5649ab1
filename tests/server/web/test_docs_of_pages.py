"""docs/dashboard.md shows every page of a hub by a picture, which the tests in tests/web take."""

import re
from urllib.parse import urlsplit

import pytest
from starlette.routing import compile_path

from deltahub.methods.kinds.table import KINDS
from deltahub.server.web.admin.lists import ACCESS_TABS, STORAGE_TABS
from deltahub.server.web.app import MODULES
from support.web.pages import EVERY
from support.web.pictures import DOC

MOST_BYTES = 2_500_000
# Routes that lead on to a page, or answer with a part of one.
NO_PAGES = {
    "begin_openid_login", "end_openid_login", "suggest_models", "show_choices", "watch_job",
    "show_access", "show_main",
}  # fmt: skip


def shown() -> set[str]:
    """The names of the picture files in the document."""
    return set(
        re.findall(r"^!\[[^\]]+\]\(pictures/([\w-]+\.png)\)$", DOC.read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("name", EVERY)
def test_every_page_has_its_picture_in_the_document(name: str) -> None:
    assert any(re.fullmatch(rf"{name}-(laptop|phone)-(light|dark)\.png", each) for each in shown())


def test_the_pictures_are_there_and_small_and_no_others() -> None:
    files = {each.name: each.stat().st_size for each in (DOC.parent / "pictures").iterdir()}
    assert set(files) == shown()
    assert sum(files.values()) < MOST_BYTES


def test_every_route_of_the_pages_is_among_the_pages() -> None:
    routes = [
        (compile_path(route.path)[0], f"{module.__name__} {route.name}", route.name)
        for module in MODULES
        for route in module.router.routes
        if "GET" in route.methods
    ]
    reached = set()
    for address in EVERY.values():
        path = urlsplit(address).path
        reached.add(next(label for pattern, label, _ in routes if pattern.match(path)))
    assert {label for _, label, name in routes if name not in NO_PAGES} <= reached


def test_every_table_and_form_that_an_address_names_is_among_the_pages() -> None:
    paths = {urlsplit(address).path for address in EVERY.values()}
    assert {f"/-/admin/storage/{name}".rstrip("/") for name, _ in STORAGE_TABS} <= paths
    assert {f"/-/admin/access/{name}" for name, _ in ACCESS_TABS} <= paths
    assert {f"/-/jobs/new/{kind}" for kind in KINDS} <= paths
