"""Jobs that people start on a page: an estimate, the run as it goes on, the report, the model."""

from playwright.sync_api import Browser, expect

from support.web.browsing import visitor
from support.web.filled_hub import FilledHub
from support.web.pictures import take_picture


def test_a_merge_is_estimated_started_and_followed_to_its_model(
    browser: Browser, hub: FilledHub
) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/jobs/new/merge")
        page.locator("#field-base").press_sequentially("admin/base")
        # The fine-tunes of the base come as it is typed.
        page.get_by_label("admin/haiku", exact=True).check()
        page.get_by_label("admin/sonnet", exact=True).check()
        page.get_by_label("EMR").check()
        page.get_by_label("New model").fill("admin/live")
        page.get_by_role("button", name="Estimate first").click()
        expect(page.get_by_role("button", name="Start it")).to_be_visible(timeout=60_000)
        person.check_accessible()
        take_picture(page, "estimate-laptop-light")
        page.get_by_role("button", name="Start it").click()
        page.wait_for_url("**/-/jobs/*")
        page.evaluate("window.isTheSamePage = true")
        # Its state changes under the eyes of the person, without a new page.
        expect(page.get_by_role("heading", level=1).locator("a")).to_have_text(
            "admin/live", timeout=90_000
        )
        assert page.evaluate("window.isTheSamePage")
        expect(page.locator("#log li").first).to_be_visible()
        person.check_accessible()
        page.get_by_role("heading", level=1).locator("a").click()
        page.wait_for_url(f"{hub.url}/admin/live")
        expect(page.get_by_role("heading", level=1)).to_contain_text("live")


def test_what_is_wrong_with_a_form_stands_at_its_field(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/jobs/new/merge")
        page.locator("#field-base").fill("admin/base")
        page.locator("#field-models").fill("admin/haiku")
        page.get_by_label("New model").fill("admin/one")
        page.get_by_role("button", name="Start without an estimate").click()
        expect(page.get_by_role("alert").first).to_be_visible()
        assert page.locator("#field-base").input_value() == "admin/base"
        person.check_accessible()


def test_a_comparison_is_asked_for_on_the_page_of_a_model(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/admin/sonnet/compare?base=admin/base&with=admin/sonnet")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#tensors")).to_be_visible(timeout=90_000)
        person.check_accessible()
