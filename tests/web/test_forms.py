"""The forms of people and administrators, filled in and sent in a real browser."""

import re

from playwright.sync_api import Browser, Dialog, Page, expect

from support.web.browsing import WIDTHS, Visitor, visitor
from support.web.filled_hub import FilledHub
from support.web.pictures import take_picture

PASSWORD = "correct horse battery staple"


def accept(page: Page) -> list[str]:
    """Say yes to every question; the questions."""
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.on("dialog", answer)
    return asked


def invite(person: Visitor, name: str) -> str:
    """Make a user as the administrator does; the link to set a password."""
    page = person.open("/-/admin/access/users")
    page.get_by_text("New user").click()
    page.locator("#new-name").fill(name)
    page.get_by_role("button", name="Make the user").click()
    link = page.locator("pre.shell code").inner_text()
    assert link.startswith(person.base)
    return link


def test_a_new_user_comes_in_by_the_link_and_changes_the_password(
    browser: Browser, hub: FilledHub
) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        link = invite(person, "newcomer")
    with visitor(browser, hub.url) as person:
        page = person.open(link.removeprefix(hub.url))
        person.check_accessible()
        take_picture(page, "invitation-laptop-light")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Set it and log in").click()
        expect(page.locator("header summary")).to_contain_text("newcomer")
        page.locator("header summary").click()
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(lambda url: "settings" not in url)
        page = person.open("/-/login")
        page.locator("#name").fill("newcomer")
        page.locator("#password").fill("wrong")
        page.locator("form:has(#password) button").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.locator("#password").fill(PASSWORD)
        page.locator("form:has(#password) button").click()
        expect(page.locator("header summary")).to_contain_text("newcomer")
        page = person.open("/-/settings/password")
        page.locator("#old").fill(PASSWORD)
        page.locator("#new").fill(PASSWORD + "!")
        page.get_by_role("button", name="Change it").click()
        expect(page.get_by_role("status")).to_be_visible()
    with visitor(browser, hub.url) as person:
        person.open(link.removeprefix(hub.url), status=404)


def test_a_token_is_shown_once_and_revoked(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.guest_token)
        asked = accept(person.page)
        page = person.open("/-/settings/tokens")
        page.get_by_label("What it is for").fill("laptop")
        page.get_by_role("button", name="Make the token").click()
        secret = page.locator("#new-token").inner_text()
        assert re.fullmatch(r"hf_[A-Za-z]{34}", secret)
        person.check_accessible()
        page = person.open("/-/settings/tokens")
        assert secret not in page.content()
        page.get_by_role("button", name="Revoke the token laptop").click()
        expect(page.get_by_role("button", name="Revoke the token laptop")).to_have_count(0)
        assert len(asked) == 1
        assert "laptop" in asked[0]


def test_an_organization_is_made_and_has_members(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        accept(person.page)
        page = person.open("/-/settings/organizations")
        page.locator("#name").fill("poets")
        page.get_by_role("button", name="Make the organization").click()
        page = person.open("/-/settings/organizations/poets")
        page.locator("#user").fill("nobody-of-this-name")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("nobody-of-this-name")
        page.locator("#user").fill("ida")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("button", name="Change the role of ida")).to_be_visible()
        person.check_accessible()
        page.locator("form:has(button:has-text('of ida')) select").select_option("read")
        page.get_by_role("button", name="Change the role of ida").click()
        expect(page.locator("form:has(button:has-text('of ida')) select")).to_have_value("read")
        page.get_by_role("button", name="Remove ida").click()
        expect(page.get_by_role("button", name="Remove ida")).to_have_count(0)


def test_other_sessions_are_ended(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as other, visitor(browser, hub.url) as person:
        other.log_in(hub.guest_token)
        person.log_in(hub.guest_token)
        accept(person.page)
        page = person.open("/-/settings/sessions")
        page.get_by_role("button", name="End all others").click()
        expect(page.locator("#content").get_by_role("button", name="Log out")).to_have_count(1)
        other.page.goto(f"{hub.url}/-/settings")
        assert "/-/login" in other.page.url


def test_a_model_becomes_private_and_is_deleted_by_its_name(
    browser: Browser, hub: FilledHub
) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/new")
        page.get_by_label("Name", exact=True).fill("brief")
        page.get_by_role("button", name="Create, and add files").click()
        page.wait_for_url("**/-/upload/admin/brief")
        page = person.open("/admin/brief/settings")
        page.get_by_label("Private:").check()
        page.get_by_role("button", name="Change who may read it").click()
        page.wait_for_load_state()
        with visitor(browser, hub.url) as stranger:
            stranger.open("/admin/brief", status=404)
        page = person.open("/admin/brief/settings")
        page.locator("#confirm-name").fill("admin/other")
        page.get_by_role("button", name="Delete this model").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.locator("#confirm-name").fill("admin/brief")
        page.get_by_role("button", name="Delete this model").click()
        page.wait_for_load_state()
        person.open("/admin/brief", status=404)


def test_a_quota_is_set_with_a_unit_and_taken_back(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/admin/storage/namespaces?words=ida")
        row = page.locator("tr", has_text="ida")
        row.get_by_role("button", name="Change").click()
        row.get_by_label("Most stored").fill("5 GB")
        row.get_by_role("button", name="Set").click()
        expect(page.locator("tr", has_text="ida")).to_contain_text("5 GB")
        row = page.locator("tr", has_text="ida")
        row.get_by_role("button", name="Change").click()
        row.get_by_role("button", name="Hub's defaults").click()
        expect(page.locator("tr", has_text="ida")).not_to_contain_text("5 GB")


def test_a_user_who_is_disabled_is_out_at_once(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person, visitor(browser, hub.url) as other:
        person.log_in(hub.token)
        asked = accept(person.page)
        link = invite(person, "leaver")
        page = other.open(link.removeprefix(hub.url))
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Set it and log in").click()
        other.open("/-/settings")
        page = person.open("/-/admin/access/users?words=leaver")
        row = page.locator("tr", has_text="leaver")
        row.get_by_role("button", name="More").click()
        row.get_by_role("button", name="Disable").click()
        expect(page.locator("tr", has_text="leaver")).to_contain_text("Enable")
        assert "leaver" in asked[0]
        other.page.goto(f"{hub.url}/-/settings")
        assert "/-/login" in other.page.url


def test_the_menu_of_the_last_row_opens_whole_below_its_button(
    browser: Browser, hub: FilledHub
) -> None:
    for shape in WIDTHS:
        with visitor(browser, hub.url, width=WIDTHS[shape]) as person:
            person.log_in(hub.token)
            for path, name in (("access/users", "More"), ("storage/namespaces", "Change")):
                page = person.open(f"/-/admin/{path}")
                button = page.get_by_role("button", name=name).last
                button.click()
                menu = page.locator(".menu-items:popover-open")
                expect(menu).to_have_count(1)
                at, below = menu.bounding_box(), button.bounding_box()
                assert at is not None
                assert below is not None
                assert at["x"] >= 0
                assert at["x"] + at["width"] <= WIDTHS[shape]
                assert 0 <= at["y"] - below["y"] - below["height"] < 8
                # What lies at each corner is the menu, and not what cuts it off.
                for last in menu.get_by_role("button").all():
                    last.click(trial=True)
                person.check_accessible()
                page.keyboard.press("Escape")
                expect(menu).to_have_count(0)
