"""Every page, at two widths and in both themes: no error, no other host, nothing that axe finds."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from support.web.browsing import THEMES, WIDTHS, take_picture, visitor
from support.web.filled_hub import FilledHub

# name of the picture -> path. For everybody, and for the administrator.
PUBLIC = {
    "home": "/",
    "search": "/?q=haiku",
    "nothing-found": "/?q=nothing-has-this-name",
    "model": "/admin/haiku",
    "login": "/-/login",
}
OF_ADMIN = {
    "new": "/-/new",
    "upload": "/-/upload/admin/haiku",
}


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
                if (theme, shape) in (("light", "laptop"), ("dark", "laptop"), ("light", "phone")):
                    take_picture(page, f"{name}-{shape}-{theme}")


def test_a_guest_who_asks_for_a_page_of_his_own_logs_in_first(
    browser: Browser, hub: FilledHub
) -> None:
    with visitor(browser, hub.url) as person:
        person.page.goto(f"{hub.url}/-/new")
        assert person.page.url.endswith(f"/-/login?next={quote('/-/new', safe='')}")
        person.page.locator("#token").fill(hub.token)
        person.page.locator("main form:has(#token) button[type=submit]").click()
        person.page.wait_for_url("**/-/new")
