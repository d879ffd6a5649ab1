"""Every page, at two widths and in both themes: no error, no other host, nothing that axe finds."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from support.web.browsing import THEMES, WIDTHS, visitor
from support.web.filled_hub import FilledHub
from support.web.pages import OF_ADMIN, PUBLIC
from support.web.pictures import take_picture


@pytest.mark.parametrize("name", PUBLIC)
def test_everybody_may_look_at(browser: Browser, hub: FilledHub, name: str) -> None:
    look_at(browser, hub, name, PUBLIC[name], token=None)


@pytest.mark.parametrize("name", OF_ADMIN)
def test_the_administrator_may_look_at(browser: Browser, hub: FilledHub, name: str) -> None:
    look_at(browser, hub, name, OF_ADMIN[name], token=hub.token)


def look_at(browser: Browser, hub: FilledHub, name: str, path: str, token: str | None) -> None:
    for theme in THEMES:
        for shape, width in WIDTHS.items():
            with visitor(browser, hub.url, width=width, theme=theme) as person:
                if token is not None:
                    person.log_in(token)
                page = person.open(path)
                page.wait_for_load_state("networkidle")
                # Nothing is cut off at the right: the page itself does not scroll sideways.
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, (path, shape, wide)
                person.check_accessible()
                take_picture(page, f"{name}-{shape}-{theme}")


def test_a_finished_job_has_a_page(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/jobs?kind=merge")
        path = page.locator("#content tbody a[href^='/-/jobs/']").first.get_attribute("href")
        assert path is not None
    look_at(browser, hub, "job", path, token=hub.token)


def test_a_commit_has_a_page(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        page = person.open("/admin/haiku/commits/main")
        path = page.locator("#content a[href*='/commit/']").first.get_attribute("href")
        assert path is not None
    look_at(browser, hub, "commit", path, token=None)


def test_a_guest_who_asks_for_a_page_of_his_own_logs_in_first(
    browser: Browser, hub: FilledHub
) -> None:
    with visitor(browser, hub.url) as person:
        person.page.goto(f"{hub.url}/-/new")
        assert person.page.url.endswith(f"/-/login?next={quote('/-/new', safe='')}")
        person.give_token(hub.token)
        person.page.wait_for_url("**/-/new")
